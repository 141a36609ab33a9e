"""Top-k operators."""
