"""Training runs on disk: their settings, recipes, folders and checkpoints."""
