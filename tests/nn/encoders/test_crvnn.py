"""CRvNN: its equations, its tree, and what holds for every input."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import support
from beamtree import Tree
from beamtree.nn.encoders.crvnn import CRvNN
from beamtree.nn.engine.dispatch import EngineError
from beamtree.nn.engine.loops import continuous
from beamtree.nn.engine.loops.continuous import ContinuousLoop, by_matrices, neighbours
from beamtree.nn.interop import load_official, official_names
from beamtree.utils.memory import watch_saved
from golden_cases import FILES, Golden
from support import assert_batch_does_not_matter, inputs

GOLDEN = [path for path in FILES if path.stem.startswith("crvnn")]


def make(seed=0, strength=3.0, bias=0.0, **options):
    """An encoder in float64 whose weights depend on the seed alone."""
    torch.manual_seed(seed)
    encoder = CRvNN(6, **options).double().eval()
    with torch.no_grad():
        encoder.scorer.weight.mul_(strength)
        encoder.scorer.bias.add_(bias)
    return encoder


def everything(encoder, x, lengths):
    """Encoding, nodes and gradients of a pass."""
    x = x.clone().requires_grad_()
    out = encoder(x, lengths, generator=torch.Generator().manual_seed(5))
    loss = out.state.sin().sum() + out.beams.nodes.states.square().mean()
    gradients = torch.autograd.grad(loss, (x, *encoder.parameters()))
    return out.state, out.beams.nodes.states, *gradients


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("options", [{}, {"halt": False}, {"recompute": False}], ids=str)
def test_encodings_and_gradients_are_those_of_the_published_code(path, options):
    case = Golden(path)
    encoder = CRvNN(case.meta["dim"], floor="official", **options).double().eval()
    load_official(encoder, case.parameters)
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in official_names(encoder).items()}
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    encoder.floor = "none"  # which hardly matters to the result
    torch.testing.assert_close(encoder(x, case.arrays["lengths"]).state, case.arrays["output"], atol=1e-7, rtol=0)


def spread(existence):
    """A weight of 1, spread from the first on, as much to each as exists."""
    left, weights = 1.0, []
    for one in existence:
        weights.append(min(one, left))
        left -= weights[-1]
    return weights


@given(st.lists(st.sampled_from([0.0, 1.0]) | st.floats(0, 1), min_size=1, max_size=8))
def test_neighbours_share_a_weight_of_one_from_the_nearest_on(existence):
    left, right = neighbours(torch.tensor([existence])).unbind(1)
    for i in range(len(existence)):
        expected = [0.0] * (i + 1) + spread(existence[i + 1 :])
        assert right[0, i].tolist() == pytest.approx(expected, abs=1e-6)
        expected = spread(existence[:i][::-1])[::-1] + [0.0] * (len(existence) - i)
        assert left[0, i].tolist() == pytest.approx(expected, abs=1e-6)


def test_neighbours_of_long_samples_keep_their_digits():
    torch.manual_seed(0)
    existence = torch.rand(1, 3000)
    left, right = neighbours(existence).unbind(1)
    near, far = neighbours(existence[:, -40:]).unbind(1)
    torch.testing.assert_close(right[:, -40:, -40:], far, atol=1e-11, rtol=0)
    torch.testing.assert_close(left[:, -20:, -40:], near[:, -20:], atol=1e-11, rtol=0)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    strength=st.sampled_from([0.1, 3.0, 30.0]),
    halt=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, strength, halt, seed):
    encoder = make(seed, strength, halt=halt, recompute=False)
    assert_batch_does_not_matter(encoder, lengths, padding, seed, atol=1e-10)


def test_one_word_is_its_leaf():
    encoder = make()
    x, lengths = inputs([1])
    out = encoder(x, lengths)
    torch.testing.assert_close(out.state, encoder.leaf(x)[:, 0])
    assert out.beams.trees() == [[Tree.parse("0")]]


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_two_words_take_two_iterations_at_most(strength):
    encoder = make(strength=strength)
    x, lengths = inputs([2])
    vectors = torch.cat((encoder.start[None], x[0], encoder.end[None]))
    start, a, b, end = encoder.leaf(vectors)
    zero, exists = torch.zeros_like(a), torch.ones(())
    for _ in range(2):
        # To the left of b stands as much of a as exists, then START; that a has to its right is b, then END.
        second = exists * a + (1 - exists) * start
        two_left, two_right = zero, end
        window = torch.cat((two_left, start, a, b, two_right))
        go = encoder.scorer(torch.nn.functional.gelu(encoder.window(window))).sigmoid()
        come = exists * go
        b = come * encoder.cell(second, b) + (1 - come) * b
        exists = exists * (1 - go)
        # R(START, ·) has no part: START is never absorbed, so a stays as it is.
    out = encoder(x, lengths)
    torch.testing.assert_close(out.state[0], b)
    assert out.beams.trees() == [[Tree.parse("(0 1)")]]


class Given(torch.nn.Module):
    """A scorer that gives each word the same score in every iteration."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, window):
        return torch.nn.functional.pad(self.scores, (1, 1)).to(window.dtype).expand(window.shape[:2]).unsqueeze(-1)


def absorb(scores):
    """The tree when each word goes that has a larger score than its neighbours, all of them at a time."""
    constituents, spans = [(i, i + 1) for i in range(len(scores))], []
    while len(constituents) > 1:
        own = [scores[end - 1] for _, end in constituents[:-1]]
        bounded = [0, *own, 0]
        for i in reversed(range(len(own))):  # from the right, so that the places to the left stay what they are
            if own[i] > max(bounded[i], bounded[i + 2]):
                constituents[i : i + 2] = [(constituents[i][0], constituents[i + 1][1])]
                spans.append(constituents[i])
    return Tree.from_spans(spans, [str(i) for i in range(len(scores))])


@given(st.permutations(range(10)), st.lists(st.integers(1, 10), min_size=1, max_size=3), st.integers(0, 100))
@settings(max_examples=25)
def test_where_choices_are_hard_nodes_are_those_of_the_tree(order, lengths, seed):
    encoder = make(seed)
    scores = [40.0 * (place + 1) for place in order]  # far enough apart, and from 0
    encoder.scorer = Given(torch.tensor(scores))
    x, lengths = inputs(lengths, width=10, seed=seed)
    out = encoder(x, lengths)
    nodes = out.beams.nodes
    for sample, (tree,) in enumerate(out.beams.trees()):
        assert tree == absorb(scores[: len(tree)])
        states = {(i, i + 1): leaf for i, leaf in enumerate(encoder.leaf(x)[sample])}
        for start, end in tree.spans(leaves=False):
            split = next(k for k in range(start + 1, end) if {(start, k), (k, end)} <= set(tree.spans()))
            states[start, end] = encoder.cell(states[start, split], states[split, end])
        mask = nodes.mask[sample, 0]
        spans = [tuple(span) for span in nodes.spans[sample, 0][mask].tolist()]
        assert sorted(spans) == sorted(tree.spans())
        for span, state in zip(spans, nodes.states[sample, 0][mask], strict=True):
            torch.testing.assert_close(state, states[span], atol=1e-12, rtol=0)
        torch.testing.assert_close(out.state[sample], states[0, len(tree)], atol=1e-12, rtol=0)


def test_words_that_are_never_absorbed_come_last():
    """Word 3 goes at once; of the others 1 exists least in the end, then 2."""
    encoder = make()
    encoder.scorer = Given(torch.tensor([-9.0, -5.0, -7.0, 40.0, 0.0]))
    out = encoder(*inputs([5]))
    assert out.beams.trees() == [[Tree.parse("(0 ((1 2) (3 4)))")]]


def test_the_root_is_the_encoding():
    out = make(strength=0.1)(*inputs([9, 6, 2]))
    nodes = out.beams.nodes
    for sample, n in enumerate([9, 6, 2]):
        assert nodes.spans[sample, 0, 9 + n - 2].tolist() == [0, n]
        assert torch.equal(nodes.states[sample, 0, 9 + n - 2], out.state[sample])
    assert out.beams.log_probs.tolist() == [[0], [0], [0]]


def test_how_it_is_computed_does_not_matter():
    """With and without halting and recomputation, and by the reference, under dropout: one result."""
    ways = [{"halt": halt, "recompute": recompute} for halt, recompute in itertools.product((True, False), repeat=2)]
    ways.append({"engine": "reference"})
    x, lengths = inputs([9, 6, 2])
    first, *others = (everything(make(dropout=0.3, **way).train(), x, lengths) for way in ways)
    for other in others:
        torch.testing.assert_close(first, other, atol=1e-13, rtol=0)


def test_recomputation_keeps_a_small_part_for_backward():
    kept = {}
    for recompute in (True, False):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.nbytes), t)[1], lambda t: t
        ):
            make(recompute=recompute, strength=0.1)(*inputs([20]))
        kept[recompute] = sum(sizes)
    # Besides, h and e of each iteration are held as the arguments of a call.
    assert kept[True] + 20 * 22 * 7 * 8 < kept[False] / 10


def count_iterations(encoder, x, lengths):
    calls, iterate = [], ContinuousLoop.iterate
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(ContinuousLoop, "iterate", lambda *arguments: (calls.append(1), iterate(*arguments))[1])
        encoder(x, lengths)
    return len(calls)


def test_halting_ends_the_iterations():
    halting, patient = (
        count_iterations(make(strength=100.0, bias=250.0, halt=halt), *inputs([12, 8])) for halt in (True, False)
    )
    assert halting < patient == 12


def without_kernels(patch, dtype=torch.float64):
    """Averages and cells by PyTorch's operations also where steps are captured: without a GPU kernels take long."""
    from beamtree.nn.engine.gpu import cells

    def averages_and_active(existence, absorbable, threshold):
        return by_matrices(existence, dtype), absorbable & continuous.is_unfinished(existence, threshold)

    patch.setattr(continuous, "by_windows", averages_and_active)
    patch.setattr(cells, "dense", lambda cell, rows: cell)


def set_segments(patch, longest):
    """Captured segments have so many steps at most."""
    from beamtree.nn.engine.gpu import segments

    patch.setattr(segments, "MAX_STEPS", longest)
    return segments


def both_engines(lengths, seed=0, kernels=False, **options):
    """What engine "torch" gives, and what "triton" does, which launches its graphs here as it would on a GPU.

    kernels: with the kernels for averages too.
    """
    x, lengths = inputs(lengths, seed=seed)
    encoder = make(seed, **options).train()
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continuous, "why_not_triton", lambda leaves: None)  # which wants float32
        if not kernels:
            without_kernels(patch)
        for encoder.engine in ("torch", "triton"):
            found.append(support.everything(encoder, x, lengths))
    return found


@pytest.mark.parametrize("options", [{}, {"halt": False}, {"dropout": 0.3}, {"floor": "official"}], ids=str)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    strength=st.sampled_from([0.3, 3.0, 100.0]),
    longest=st.integers(1, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_engines_agree(options, lengths, strength, longest, seed, workspaces):
    """Encodings, nodes, trees and gradients, with segments of any length."""
    with pytest.MonkeyPatch.context() as patch:
        set_segments(patch, longest)
        support.assert_same(*both_engines(lengths, seed, strength=strength, **options), atol=1e-11)


@pytest.mark.usefixtures("shape_checks_off")  # they double the time
@pytest.mark.parametrize(("options", "strength"), [({}, 0.3), ({"dropout": 0.3}, 100.0)], ids=str)
def test_engines_agree_with_averages_in_kernels(options, strength, workspaces, monkeypatch):
    set_segments(monkeypatch, 2)
    support.assert_same(*both_engines([4, 2], kernels=True, strength=strength, **options), atol=1e-11)


@pytest.mark.parametrize("options", [{}, {"halt": False}, {"dropout": 0.3}], ids=str)
def test_a_graph_is_used_again_for_other_weights_inputs_and_lengths(options, workspaces, monkeypatch):
    monkeypatch.setattr(set_segments(monkeypatch, 3), "Captured", support.Replayed)
    for seed, lengths in enumerate(([8, 3], [2, 8], [8, 8], [1, 8])):
        support.assert_same(*both_engines(lengths, seed, **options), atol=1e-11)
    assert len(workspaces) == 1


def test_on_a_cpu_auto_is_torch(monkeypatch):
    monkeypatch.setattr(continuous, "why_not_triton", lambda leaves: pytest.fail("asked for a graph"))
    encoder = make()
    assert encoder.engine == "auto"
    encoder(*inputs([4, 2]))


@pytest.mark.parametrize("halt", [True, False])
def test_captured_iterations_end_with_a_segment(halt, workspaces, monkeypatch):
    segments = set_segments(monkeypatch, 3)
    monkeypatch.setattr(continuous, "why_not_triton", lambda leaves: None)
    without_kernels(monkeypatch)
    encoder = make(strength=100.0, bias=250.0, halt=halt)
    taken = count_iterations(encoder, *inputs([12, 8]))
    drawn, run = [], segments.run

    def watched(loop, carry, given, draw, *rest, **options):
        return run(loop, carry, given, lambda steps: (drawn.append(steps), draw(steps))[1], *rest, **options)

    encoder.engine = "triton"
    monkeypatch.setattr(segments, "run", watched)
    with torch.no_grad():
        encoder(*inputs([12, 8]))
    assert drawn == [range(first, first + 3) for first in range(0, taken, 3)]


def test_captured_iterations_keep_a_fraction_of_what_torch_does(workspaces, monkeypatch):
    """h, e, nodes and times before each segment of sixteen."""
    without_kernels(monkeypatch, torch.float32)
    x, lengths = inputs([65], dtype=torch.float32)
    encoder = make(halt=False, strength=0.1, dropout=0.1).float().train()
    kept = {}
    for encoder.engine in ("torch", "triton"):
        saved = {}
        with watch_saved(saved, [*encoder.parameters(), x]):
            state = encoder(x, lengths).state
        kept[encoder.engine] = sum(saved.values())
        assert state.requires_grad
    # Of "torch" h and e of each iteration are held besides, as the arguments of a call.
    assert 0 < kept["triton"] < 65 * 67 * 7 * 4 / 2 < kept["torch"] + 65 * 67 * 7 * 4


@pytest.mark.parametrize(
    ("dtype", "interpreted", "message"),
    [(torch.float64, True, "float32, not in torch.float64"), (torch.float32, False, "CUDA device, not on cpu")],
)
def test_what_cannot_be_captured_is_refused(dtype, interpreted, message, monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreted)
    encoder = make(engine="triton").to(dtype)
    with pytest.raises(EngineError, match=f"engine 'triton' cannot do this: .*{message}; engine 'auto' can"):
        encoder(*inputs([4], dtype=dtype))


def test_every_parameter_gets_a_gradient():
    encoder = make(dropout=0.1).train()
    encoder(*inputs([7, 5])).state.sin().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad.abs().max() > 1e-6, name


def test_gradients_are_derivatives():
    encoder = make()
    x, lengths = inputs([5, 3])

    def function(x):
        out = encoder(x, lengths)
        return out.state, out.beams.nodes.states

    assert torch.autograd.gradcheck(function, x.requires_grad_(), fast_mode=True)


def test_no_score_is_too_large():
    encoder = make(strength=1e4, bias=-1e4)
    for bias in (-1e4, 1e4):
        with torch.no_grad():
            encoder.scorer.bias.fill_(bias)
        assert all(result.isfinite().all() for result in everything(encoder, *inputs([7, 3])))


def test_dropout_is_repeatable_and_off_at_test():
    encoder = make(dropout=0.3).train()
    x, lengths = inputs([7, 4])
    one, again, other = (encoder(x, lengths, generator=torch.Generator().manual_seed(seed)).state for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.isclose(one, other).all()
    torch.testing.assert_close(encoder.eval()(x, lengths).state, make()(x, lengths).state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"halt": 1}, "halt is 1"),
        ({"threshold": -1.0}, r"threshold is -1\.0"),
        ({"recompute": None}, "recompute is None"),
        ({"floor": "offical"}, "did you mean 'official'"),
        ({"engine": "cuda"}, "unknown engine 'cuda'; known: auto, reference, torch, triton"),
    ],
)
def test_wrong_options_are_refused(options, message, shape_checks_off):
    with pytest.raises(ValueError, match=message):
        CRvNN(6, **options)
