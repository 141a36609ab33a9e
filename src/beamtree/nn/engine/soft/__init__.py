"""Beam search with SOFT top-k."""
