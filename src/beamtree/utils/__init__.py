"""Helpers that any part of the package may use."""
