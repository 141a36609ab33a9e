"""Beam search over easy-first composition, with the plain top-k."""
