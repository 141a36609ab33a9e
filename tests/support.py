"""What several tests share: encoders with equal weights, a pass with all its outputs and gradients, and oracles."""

import contextlib
import itertools

import jaxtyping
import torch

import beamtree

BEAM_TREES = ["bt-grc", "bt-lstm", "bt-grc-onesoft"]  # the encoders that all engines compute
ENCODERS = [
    ("bt-grc", {}),
    ("bt-lstm", {}),
    ("bt-grc-onesoft", {"mix": "paper"}),
    ("bt-grc-onesoft", {"mix": "official"}),
]
ENCODER_IDS = ["bt-grc", "bt-lstm", "onesoft-paper", "onesoft-official"]


def make(name, engine="torch", dim=6, seed=0, dtype=torch.float64, **options):
    """An encoder whose weights depend on the seed alone, with a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    encoder = beamtree.encoder(name, dim=dim, engine=engine, **options).to(dtype)
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder


def inputs(lengths, width=None, dim=6, seed=0, dtype=torch.float64):
    """Random x, and lengths as a tensor; `width` pads further."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), width or max(lengths), dim, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.tensor(lengths)


def everything(encoder, x, lengths, seed=7):
    """All outputs of a pass, and the gradients of a loss that depends on each of them."""
    x = x.clone().requires_grad_()
    out = encoder(x, lengths, generator=torch.Generator(x.device).manual_seed(seed))
    nodes, log_probs = out.beams.nodes, out.beams.log_probs
    order = torch.arange(nodes.states.shape[2], device=x.device).unsqueeze(1)
    loss = out.state.sin().sum() + (order * nodes.states**2).mean() + log_probs[log_probs.isfinite()].sin().sum()
    wanted = {"x": x, **dict(encoder.named_parameters())}
    found = torch.autograd.grad(loss, tuple(wanted.values()), allow_unused=True, materialize_grads=True)
    result = {"state": out.state, "probabilities": log_probs.exp(), "nodes": nodes.states}
    result |= {f"gradient of {name}": gradient for name, gradient in zip(wanted, found, strict=True)}
    return {k: v.detach() for k, v in result.items()}, nodes, out.beams.trees()


def assert_same(a, b, atol):
    """Two results of `everything` agree: numbers, spans and trees."""
    for name in a[0]:
        torch.testing.assert_close(a[0][name], b[0][name], atol=atol, rtol=atol, msg=lambda m, n=name: f"{n}: {m}")
    assert a[2] == b[2]
    assert torch.equal(a[1].mask, b[1].mask)
    assert torch.equal(a[1].spans, b[1].spans)


def assert_batch_does_not_matter(encoder, lengths, padding, seed, atol=1e-11):
    """Alone and without padding, each sample gives what it gives in a batch whose padding is NaN: encoding, weights of
    the beams, trees and gradient."""
    x, batch = inputs(lengths, width=max(lengths) + padding, seed=seed)
    for i, n in enumerate(lengths):
        x[i, n:] = torch.nan
    x.requires_grad_()
    together = encoder(x, batch)
    gradient = torch.autograd.grad(together.state.sin().sum(), x)[0]
    for i, n in enumerate(lengths):
        own = x[i : i + 1, :n].detach().requires_grad_()
        alone = encoder(own, batch[i : i + 1])
        torch.testing.assert_close(together.state[i], alone.state[0], atol=atol, rtol=0)
        if alone.beams is not None:
            torch.testing.assert_close(together.beams.log_probs[i], alone.beams.log_probs[0], atol=atol, rtol=0)
            assert together.beams.trees()[i] == alone.beams.trees()[0]
        own_gradient = torch.autograd.grad(alone.state.sin().sum(), own)[0][0]
        torch.testing.assert_close(gradient[i, :n], own_gradient, atol=atol, rtol=0)
        assert not gradient[i, n:].any()


@contextlib.contextmanager
def no_shape_checks():
    """As for users."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def assert_gradients_are_derivatives(function, tensors, **options):
    """By finite differences: hundreds of passes over the same shapes, which are checked in the first of them."""
    found = function(*tensors)
    found = [found] if isinstance(found, torch.Tensor) else [one for one in found if one.requires_grad]
    torch.autograd.grad(sum(one.sum() for one in found), tensors, allow_unused=True)
    with no_shape_checks():
        assert torch.autograd.gradcheck(function, tensors, **options)


def action_sequences(n):
    """All ways to reduce n leaves to one by merging neighbours."""
    return itertools.product(*(range(m) for m in range(n - 1, 0, -1)))


def follow(encoder, leaves, actions):
    """Compose leaves by these actions; the root and the log-probability of the actions, written as in Algorithm 2."""
    states, score = list(leaves), torch.zeros((), dtype=leaves.dtype)
    for action in actions:
        parents = [encoder.cell(states[i], states[i + 1]) for i in range(len(states) - 1)]
        logits = torch.stack([encoder.scorer(p[: encoder.dim]).squeeze() for p in parents])
        score = score + logits.log_softmax(0)[action]
        states[action : action + 2] = [parents[action]]
    return states[0][: encoder.dim], score


def algorithm_2(encoder, leaves, k):
    """The paper's Algorithm 2 for one sample, on Python lists: [(score, actions, root)], best first."""
    beams = [(torch.zeros((), dtype=leaves.dtype), (), list(leaves))]
    while len(beams[0][2]) > 1:
        grown = []
        for score, actions, states in beams:
            parents = [encoder.cell(a, b) for a, b in itertools.pairwise(states)]
            logits = torch.stack([encoder.scorer(p[: encoder.dim]).squeeze() for p in parents])
            log_p = logits.log_softmax(0)
            for i in sorted(range(len(parents)), key=lambda i: -log_p[i].item())[:k]:
                grown.append((score + log_p[i], (*actions, i), [*states[:i], parents[i], *states[i + 2 :]]))
        beams = sorted(grown, key=lambda beam: -beam[0].item())[:k]
    return [(score, actions, states[0][: encoder.dim]) for score, actions, states in beams]


class Replayed:
    """In place of `beamtree.nn.engine.gpu.capture.Captured`: has what makes a real graph harder to use. It does again
    what was captured, whatever it is given, and writes where it wrote before."""

    def __init__(self, device):
        self.kept = None

    def run(self, launch):
        if self.kept is None:
            self.kept = launch, launch()
            return launch()
        captured, result = self.kept
        for own, new in zip(_tensors(result), _tensors(captured()), strict=True):
            own.copy_(new)
        return result


def _tensors(result):
    for part in result:
        yield from (part,) if isinstance(part, torch.Tensor) else part


def in_small_pieces(monkeypatch):
    """Fused searches go four steps at a time, and their gradients over eight nodes: Triton's interpreter takes
    milliseconds for each program."""
    from beamtree.nn.engine.gpu import forest, onesoft, trees, workspace
    from beamtree.nn.engine.noise import Noise

    monkeypatch.setattr(Noise, "STEPS", 4)
    monkeypatch.setattr(workspace, "SEGMENT", 4)
    monkeypatch.setattr(workspace, "SHORT", 2)
    monkeypatch.setattr(forest, "FEWEST", 8)
    monkeypatch.setattr(forest, "MOST", 8)
    for module in (forest, trees):
        monkeypatch.setattr(module, "LEVELS", 2)
    monkeypatch.setattr(onesoft, "padded_soft_length", lambda length: length + length % 2)
