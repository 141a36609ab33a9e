"""SOFT top-k on a CUDA device, where its iterations are one kernel, beside the CPU."""

import pytest
import torch

from beamtree.nn.topk.transport import soft_topk

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("m", [6, 25, 64, 3000], ids=lambda m: f"m{m}")  # the last in PyTorch's own launches
def test_weights_and_gradients_are_those_of_the_cpu(m, dtype):
    torch.manual_seed(0)
    scores, slopes = torch.randn(7, m, dtype=dtype), torch.randn(7, m, 5, dtype=dtype)
    scores[2, 5:] = -torch.inf
    scores[3] = -torch.inf
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    found = []
    for device in ("cpu", "cuda"):
        given = scores.to(device).requires_grad_()
        weights = soft_topk(given, 5).weights
        (gradient,) = torch.autograd.grad((weights * slopes.to(device)).sum(), given)
        found.append((weights.detach().cpu(), gradient.cpu()))
    for on_cpu, on_cuda in zip(*found, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, atol=tolerance, rtol=tolerance)
