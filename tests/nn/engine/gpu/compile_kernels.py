"""Compiles kernels for an H200, on a machine that need not have one. Standard input: a pickled list of launches, each
the module and name of a kernel, its arguments, in which tensors are `torch.dtype`s, and its options.

Prints what went wrong, and ends with 1 if something did.
"""

import importlib
import pickle
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class NoCard:
    """Of Triton's drivers, what a compiler asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    driver.set_active(NoCard())
    wrong = 0
    for module, name, arguments, options in pickle.load(sys.stdin.buffer):
        kernel = getattr(importlib.import_module(module), name)
        given = [triton.MockTensor(one) if isinstance(one, torch.dtype) else one for one in arguments]
        try:
            kernel.warmup(*given, grid=(1,), **options)
        except Exception as error:
            wrong += 1
            print(f"{module}.{name}{options}: {error}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
