"""Recurrent loops: chains of cells."""
