"""A program for compute-sanitizer: a few small training steps of every encoder that has kernels, or of those named.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --report-api-errors no python tests/gpu/sanitize.py bt-grc

With this variable every tensor is an allocation of its own, so that an access outside of it is seen. PyTorch otherwise
places many tensors in one allocation. But a capture may not allocate: CUDA graphs are then launched kernel by kernel.
Without the variable they are captured and replayed.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent / "src"), str(TESTS)]  # as in pyproject.toml for pytest

import torch  # noqa: E402

import beamtree  # noqa: E402
from beamtree.nn.engine.gpu.capture import Captured  # noqa: E402
from gpu_cases import DEVICE, KERNELS, inputs, make, run  # noqa: E402

GRAPHS = "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
PASSES = 3 if GRAPHS else 1  # launched, captured and replayed
LENGTHS = [5, 1, 3], [19, 2]  # one segment of steps, and two; batches that fill no tile


def check(name):
    """In float32, and with products in bfloat16."""
    for half in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16) if half else nullcontext():
            for lengths in LENGTHS:
                encoder, batch = make(name, "auto"), inputs(lengths)
                for _ in range(PASSES):
                    if not all(tensor.isfinite().all() for tensor in run(encoder, *batch)):
                        raise RuntimeError(f"{name}: a state or a gradient of {lengths} is not finite")
    beamtree.release_memory()


if __name__ == "__main__":
    if not GRAPHS:
        Captured.run = lambda self, launch: launch()
    for name in sys.argv[1:] or KERNELS:
        print(name, flush=True)
        check(name)
    torch.cuda.synchronize()
