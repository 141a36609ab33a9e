"""Beam search with OneSoft top-k."""
