"""Nested mappings."""

from collections.abc import Mapping
from typing import Any


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the keys of nested mappings: {"optimizer": {"lr": 1}} → {"optimizer.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
