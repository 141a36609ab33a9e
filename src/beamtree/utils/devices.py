"""Devices by name."""

# PyTorch is imported inside functions, to keep the help of the commands fast.
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from beamtree.utils.checks import check_choice

if TYPE_CHECKING:
    import torch


def find_device(name: str) -> str:
    """Resolve a device name to "cpu" or "cuda"; "auto" is "cuda" if available."""
    check_choice("device", name, ("auto", "cpu", "cuda"))
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch finds no CUDA device here: choose 'cpu' or 'auto'")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def device_name(device: "torch.device | str") -> str:
    """The product name of the device."""
    import torch

    device = torch.device(device)
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return device.type
    cpuinfo = Path("/proc/cpuinfo")  # Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
