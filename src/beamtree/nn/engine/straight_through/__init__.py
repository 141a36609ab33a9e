"""Straight-through sampling of trees."""
