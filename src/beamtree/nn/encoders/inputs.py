"""Checks of the inputs of encoders."""

import torch
from torch import Tensor


def check_inputs(x: Tensor, lengths: Tensor, dim: int, weight: Tensor, nan: bool = False) -> None:
    """Check the inputs of an encoder: x (B, N, dim) with the dtype of its weights, and lengths (B,) from 1 to N."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError(f"x is {_kind(x)}: it must be a floating-point tensor of shape (B, N, {dim})")
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"x has shape {tuple(x.shape)}: it must be (B, N, {dim}), {dim} being the encoder's dim")
    if x.device != weight.device:
        raise ValueError(f"x is on {x.device} and the encoder on {weight.device}: move one of them with .to(...)")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"x is of {x.dtype} and the encoder of {weight.dtype}: convert one of them with .to(...)")
    if 0 in x.shape:
        raise ValueError(f"x has shape {tuple(x.shape)}: it must hold at least one sample of at least one vector")
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"lengths is {_kind(lengths)}: it must be a tensor of int64 (or int32)")
    B, N = x.shape[:2]
    if lengths.shape != (B,):
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}: it must be ({B},), one for each sample of x")
    if lengths.device != x.device:
        raise ValueError(f"lengths is on {lengths.device} and x on {x.device}: they must be on one device")
    wrong = (lengths < 1) | (lengths > N)
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        raise ValueError(
            f"lengths[{sample}] is {int(lengths[sample])}: lengths must be between 1 and N = {N}, the width of x"
        )
    if nan:
        inside = torch.arange(N, device=x.device) < lengths.unsqueeze(1)
        bad = x.isnan().any(2) & inside
        if bad.any():
            sample, position = bad.nonzero()[0].tolist()
            raise ValueError(f"x[{sample}, {position}] holds NaN: clean the input, or its embedding has diverged")


def _kind(value: object) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
