"""What every encoder is asked whose steps are captured in segments (`beamtree.nn.engine.gpu.segments`)."""

import torch

from support import assert_same, everything, inputs


def on_gpu(lengths, seed=0, dim=16):
    return (t.cuda() for t in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32))


def compare(encoder, lengths, seed=0, atol=5e-4):
    """Everything that both engines give on a GPU, under the same noise and dropout."""
    found = []
    for encoder.engine in ("torch", "triton"):
        found.append(everything(encoder, *on_gpu(lengths, seed, encoder.dim)))
    assert_same(*found, atol=atol)


def assert_a_seed_repeats(encoder, lengths):
    """On a GPU, to the last bit."""
    x, lengths = on_gpu(lengths, dim=encoder.dim)
    seeds = (1, 1, 1, 2)
    first, *again, other = (encoder(x, lengths, generator=torch.Generator("cuda").manual_seed(s)).state for s in seeds)
    assert all(torch.equal(first, state) for state in again)
    assert not torch.equal(first, other)


def assert_inference_and_training_share_graphs(encoder, x, lengths, workspaces):
    """Of an encoder that is not in training, which has other masks."""
    with torch.inference_mode():
        inferred = [encoder(x, lengths).state for _ in range(2)]
    trained = encoder(x, lengths).state
    trained.sum().backward()
    assert all(torch.equal(state, trained) for state in inferred)
    assert len(workspaces) == 1
