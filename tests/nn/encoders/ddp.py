"""A program, `python ddp.py FILE`: two processes compute gradients of every encoder under DistributedDataParallel. It
prints what is wrong. FILE, which must not exist, is where they find each other.

They are forks, since to start each anew would take seconds.
"""

import datetime
import multiprocessing
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from idioms import NAMES, encode, inputs, make, run


def work(rank, file):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timeout)
    halves = [inputs(seed=seed) for seed in range(2)]
    for name in NAMES:
        try:
            first, second = (run(name, make(name), *half, seed=seed).gradients for seed, half in enumerate(halves))
            encoder = DistributedDataParallel(make(name))
            encode(name, encoder, *halves[rank], seed=rank).sin().sum().backward()
            for key, weight in encoder.module.named_parameters():
                mean = (first[key] + second[key]) / 2
                torch.testing.assert_close(weight.grad, mean, atol=1e-10, rtol=1e-10, msg=f"gradient of {key}")
        except Exception as error:
            print(f"{name}, process {rank}: {error!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank, sys.argv[1])) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
