"""Whether `torch.func` or forward-mode automatic differentiation transforms a computation.

They transform operations of PyTorch. Only the reference engines consist of nothing else.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a transform of `torch.func` runs on a tensor. Its data cannot be read then."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_transformed(tensor: Tensor) -> bool:
    """Whether a transform of `torch.func` runs on a tensor, or forward-mode differentiation has a tangent of it."""
    return is_wrapped(tensor) or forward_ad.unpack_dual(tensor).tangent is not None
