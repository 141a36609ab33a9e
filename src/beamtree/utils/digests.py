"""Digests of arrays."""

import hashlib
from collections.abc import Mapping

import numpy as np


def sha256(arrays: Mapping[str, np.ndarray], *texts: str) -> str:
    """Compute the SHA-256 of texts and of arrays with their names, types and shapes, in hexadecimal digits."""
    digest = hashlib.sha256("".join(texts).encode())
    for name, array in arrays.items():
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
