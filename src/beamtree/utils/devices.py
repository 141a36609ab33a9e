"""Devices by name."""

import torch

from beamtree.utils.checks import check_choice


def find_device(name: str) -> str:
    """Resolve a device name to "cpu" or "cuda"; "auto" is "cuda" if available."""
    check_choice("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch finds no CUDA device here: choose 'cpu' or 'auto'")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name
