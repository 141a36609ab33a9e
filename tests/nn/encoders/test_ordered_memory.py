"""Ordered Memory: its equations, its tree, and what holds for every input."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.nn.cells import GRC, function_of
from beamtree.nn.encoders import ordered_memory
from beamtree.nn.encoders.boundaries import close
from beamtree.nn.encoders.ordered_memory import OrderedMemory
from beamtree.nn.engine.dispatch import EngineError
from beamtree.nn.engine.loops import ordered_memory as loops
from beamtree.nn.engine.loops.fold import Fold
from beamtree.nn.interop import load_official, official_names
from beamtree.utils.memory import watch_saved
from golden_cases import FILES, Golden
from support import Replayed, assert_batch_does_not_matter, assert_same, everything, inputs
from toy_cells import FunctionalTanh, Tanh

GOLDEN = [path for path in FILES if path.stem.startswith("ordered-memory")]


def make(seed=0, strength=3.0, **options):
    """An encoder in float64 whose weights depend on the seed alone; a stronger scorer makes a harder p."""
    torch.manual_seed(seed)
    encoder = OrderedMemory(6, **{"slots": 4, **options}).double().eval()
    with torch.no_grad():
        encoder.scorer.weight.mul_(strength)
    return encoder


def compose(encoder, leaves, tree):
    """The state of every constituent of a tree. In the cell the right child comes first."""
    states = {(i, i + 1): leaf for i, leaf in enumerate(leaves)}
    stack = []
    for start, end in sorted(tree.spans(), key=lambda span: (span[1], -span[0])):
        if end - start > 1:
            right, left = stack.pop(), stack.pop()
            states[start, end] = encoder.cell(states[right], states[left])
        stack.append((start, end))
    return states


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_encodings_and_gradients_are_those_of_the_published_code(path):
    case = Golden(path)
    encoder = OrderedMemory(case.meta["dim"], case.meta["memory_slots"]).double().eval()
    load_official(encoder, case.parameters)
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    torch.testing.assert_close(state, case.arrays["output"], atol=1e-12, rtol=0)
    torch.testing.assert_close(x.grad, case.arrays["grad_x"], atol=1e-12, rtol=0)
    names = official_names(encoder)
    for theirs, gradient in case.gradients.items():  # the shared layer norm is there under one of its names
        torch.testing.assert_close(encoder.get_parameter(names[theirs]).grad, gradient, atol=1e-12, rtol=0)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    slots=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, slots, seed):
    encoder = make(seed, slots=slots)
    assert_batch_does_not_matter(encoder, lengths, padding, seed)


def test_one_two_and_three_words():
    """The second word has one place to go, the top; the third one of two."""
    encoder = make()
    x, lengths = inputs([3])
    a, b, c = leaves = encoder.cell.norm(encoder.leaf(x))[0]
    # To the bit, so the leaf is computed from one word too: a product of another shape may be rounded otherwise.
    assert torch.equal(encoder(x[:, :1], lengths - 2).state, encoder.cell.norm(encoder.leaf(x[:, 0])))
    torch.testing.assert_close(encoder(x[:, :2], lengths - 1).state[0], encoder.cell(b, a))
    # After two words the slots below the top hold b, and the top R(b, a).
    candidates = torch.stack((b, b, b, encoder.cell(b, a)))
    scores = encoder.scorer(torch.nn.functional.gelu(encoder.query(c) + encoder.key(candidates))) / 6**0.5
    below, top = scores[2:].softmax(0)  # their last p was 0 and 1: both are open
    memory = below * a + top * encoder.cell(b, a)
    inner = top * c + below * encoder.cell(c, b)
    torch.testing.assert_close(encoder(x, lengths).state[0], encoder.cell(inner, memory))
    assert len(leaves) == 3


def plain_fold(cell, leaf, finished, share, mask):
    """The candidates of a step under autograd; the GRC written out, with dropout on its children too."""
    state, candidates = leaf, []
    for i, memory in enumerate(finished):
        children = torch.cat((state, memory), dim=-1)
        outer, inner = (1, 1) if mask is None else mask[i].split((12, 24), dim=-1)
        gates = cell.gates(torch.nn.functional.gelu(cell.expand(children * outer)) * inner)
        z, h, c, u = gates.chunk(4, dim=-1)
        parent = cell.norm(z.sigmoid() * state + h.sigmoid() * memory + c.sigmoid() * u)
        state = (1 - share[i]) * leaf + share[i] * parent
        candidates.append(state)
    return torch.stack(candidates)


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("dropped", [False, True])
def test_the_fold_is_the_cell_slot_by_slot(slots, dropped):
    """Values, and the gradients of everything that goes in."""
    torch.manual_seed(slots)
    cell = GRC(6).double()
    torch.nn.init.normal_(cell.norm.weight)
    torch.nn.init.normal_(cell.norm.bias)
    shapes = (3, 6), (slots, 3, 6), (slots, 3, 1)
    leaf, finished, share = tensors = [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    mask = torch.rand(slots, 3, 36, dtype=torch.float64).round().mul(2) if dropped else None
    found = Fold.apply(cell.norm.eps, leaf, finished, share, mask, None, *cell.parameters())
    expected = plain_fold(cell, leaf, finished, share, mask)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)
    inputs = (*tensors, *cell.parameters())
    told = Fold.apply(cell.norm.eps, leaf, finished, share, mask, found.detach(), *cell.parameters())
    assert torch.equal(told, found)
    gradients = [torch.autograd.grad(out.sin().sum(), inputs) for out in (found, told, expected)]
    torch.testing.assert_close(gradients[0], gradients[2], atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)


@pytest.mark.parametrize("kind", [Tanh, FunctionalTanh])
@pytest.mark.parametrize("mask_dim", [6, 0], ids=["by mask", "no mask of its own"])
@pytest.mark.parametrize("dropped", [False, True])
def test_the_fold_of_another_cell_drops_its_children(kind, mask_dim, dropped):
    torch.manual_seed(0)
    cell = kind(6, mask_dim=mask_dim).double()
    leaf, finished, share = (torch.rand(shape, dtype=torch.float64) for shape in ((3, 6), (4, 3, 6), (4, 3, 1)))
    mask = torch.rand(4, 3, 12 + mask_dim, dtype=torch.float64).round().mul(2) if dropped else None
    found = loops.fold_by_autograd(function_of(cell), leaf, finished, share, mask)
    state = leaf
    for i in range(4):
        outer, inner = (1, 1) if mask is None else mask[i].split((12, mask_dim), dim=-1)
        children = torch.cat((state, finished[i]), dim=-1) * outer
        new = torch.tanh(children @ cell.weight.T)
        parent = (new * inner if mask_dim else new) + (children[:, :6] - children[:, 6:]) / 2
        state = (1 - share[i]) * leaf + share[i] * parent
        torch.testing.assert_close(found[i], state, atol=1e-13, rtol=0)


def test_dropout_of_another_cell_acts_in_training_alone():
    x, lengths = inputs([7, 4])
    encoder = make(cell=Tanh(6, dropout=0.3)).train()
    one, again, other = (encoder(x, lengths, generator=torch.Generator().manual_seed(seed)).state for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.isclose(one, other).all()
    plain = make(cell=Tanh(6))
    plain.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(encoder.eval()(x, lengths).state, plain(x, lengths).state)


class OtherGRC(GRC):
    """What it does with its layer norm is its own affair."""


@pytest.mark.parametrize("kind", [Tanh, OtherGRC])
def test_another_cell_brings_its_leaf_transform(kind):
    encoder = make(cell=kind(6))
    if kind is OtherGRC:
        torch.nn.init.normal_(encoder.cell.norm.weight)
    x, _ = inputs([2])
    a, b = encoder.leaf(x)[0]
    torch.testing.assert_close(encoder(x).state[0], encoder.cell(b, a))


def test_the_kernels_are_those_of_the_grc(workspaces):
    """A cell that is a function of tensors too is left to PyTorch."""
    encoder = make(cell=FunctionalTanh(6), engine="triton").float()
    with pytest.raises(EngineError, match="its cell is not the GRC"):
        encoder(*inputs([4], dtype=torch.float32))


def test_one_slot_is_a_recurrent_network():
    encoder = make(slots=1)
    x, lengths = inputs([6])
    state, *leaves = encoder.cell.norm(encoder.leaf(x))[0]
    for leaf in leaves:
        state = encoder.cell(leaf, state)
    out = encoder(x, lengths)
    torch.testing.assert_close(out.state[0], state)
    assert out.beams.trees() == [[Tree.parse("(((((0 1) 2) 3) 4) 5)")]]


@pytest.mark.parametrize("seed", range(5))
def test_where_p_is_hard_nodes_are_those_of_the_tree(seed):
    encoder = make(seed, strength=1e6)
    x, lengths = inputs([9, 6, 2, 1], seed=seed)
    out = encoder(x, lengths)
    nodes, trees = out.beams.nodes, out.beams.trees()
    leaves = encoder.cell.norm(encoder.leaf(x))
    for sample, (tree,) in enumerate(trees):
        expected = compose(encoder, leaves[sample], tree)
        mask = nodes.mask[sample, 0]
        spans = [tuple(span) for span in nodes.spans[sample, 0][mask].tolist()]
        assert sorted(spans) == sorted(tree.spans())
        for span, state in zip(spans, nodes.states[sample, 0][mask], strict=True):
            torch.testing.assert_close(state, expected[span], atol=1e-7, rtol=0)
        torch.testing.assert_close(out.state[sample], expected[0, len(tree)], atol=1e-7, rtol=0)


def test_the_root_is_the_encoding():
    """Also where p is soft: the second word's boundary has always the top slot."""
    out = make(strength=1.0)(*inputs([9, 6, 2]))
    nodes = out.beams.nodes
    for sample, n in enumerate([9, 6, 2]):
        assert nodes.spans[sample, 0, 9 + n - 2].tolist() == [0, n]
        assert torch.equal(nodes.states[sample, 0, 9 + n - 2], out.state[sample])
    assert out.beams.log_probs.tolist() == [[0], [0], [0]]


def merged(heights):
    """Join at the lowest boundary, among equal ones the leftmost, until one constituent is left: actions, spans."""
    constituents = [(i, i + 1) for i in range(len(heights) + 1)]
    heights, actions, spans = list(heights), [], []
    while heights:
        action = heights.index(min(heights))
        constituents[action : action + 2] = [(constituents[action][0], constituents[action + 1][1])]
        del heights[action]
        actions.append(action)
        spans.append(constituents[action])
    return actions, spans


@given(st.lists(st.lists(st.integers(0, 5), max_size=9), min_size=1, max_size=4))
def test_boundaries_close_from_the_lowest_up(samples):
    width = max(len(heights) for heights in samples)
    padded = torch.tensor([heights + [0] * (width - len(heights)) for heights in samples], dtype=torch.long)
    found = close(padded.view(len(samples), width), torch.tensor([len(heights) + 1 for heights in samples]))
    for sample, heights in enumerate(samples):
        actions, spans = merged(heights)
        assert found.actions[sample, : len(heights)].tolist() == actions
        assert [tuple(span) for span in found.spans[sample, : len(heights)].tolist()] == spans
        assert sorted(found.boundaries[sample].tolist()) == list(range(width))


def test_every_parameter_gets_a_gradient():
    encoder = make(dropout=0.1, memory_dropout=0.1).train()
    encoder(*inputs([7, 5])).state.sin().sum().backward()
    for name, parameter in encoder.named_parameters():
        if name != "scorer.bias":  # which is the same for all slots
            assert parameter.grad.abs().max() > 1e-6, name


def test_gradients_are_derivatives():
    encoder = make()
    x, lengths = inputs([5, 3])

    def function(x):
        out = encoder(x, lengths)
        return out.state, out.beams.nodes.states

    assert torch.autograd.gradcheck(function, x.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("rates", [{"dropout": 0.3}, {"memory_dropout": 0.3}])
def test_dropout_is_repeatable_and_off_at_test(rates):
    encoder = make(**rates).train()
    x, lengths = inputs([7, 4])
    one, again, other = (encoder(x, lengths, generator=torch.Generator().manual_seed(seed)).state for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.isclose(one, other).all()
    torch.testing.assert_close(encoder.eval()(x, lengths).state, make()(x, lengths).state)


def loop_of(encoder):
    """The loop that the encoder asks an engine to run."""
    found, make_request = [], loops.MemoryRequest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_memory, "MemoryRequest", lambda *given: (found.append(given), make_request(*given))[1])
        encoder(*inputs([2]))
    ((_, _, loop, _),) = found
    return loop


def test_what_dropout_keeps_is_scaled_up():
    """So that the mean stays: of leaves, candidates, activations and cells, by their own rates."""
    encoder = make(dropout=0.2, memory_dropout=0.5).train()
    leaves = torch.ones(40, 3, 6, dtype=torch.float64)
    assert encoder._drop(leaves, None).unique().tolist() == [0, 2]
    loop = loop_of(encoder)
    steps = loop.scaled(loop.masks(range(10, 50), leaves, None), leaves)
    assert len(steps) == 40
    for masks, factor in zip(zip(*steps, strict=True), (2, 2, 1.25), strict=True):
        found = torch.stack(masks)
        assert found.unique().tolist() == [0, factor]
        assert abs(found.mean() - 1) < 0.1


def set_segments(patch, longest):
    """Captured segments have so many steps at most."""
    from beamtree.nn.engine.gpu import segments

    patch.setattr(segments, "MAX_STEPS", longest)
    return segments


def both_engines(lengths, seed=0, engines=("torch", "triton"), **options):
    """What engine "torch" gives, and what "triton" does, which launches its graphs here as it would on a GPU."""
    x, lengths = inputs(lengths, seed=seed)
    encoder = make(seed, **options).train()
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "why_not_triton", lambda leaves: None)  # which wants float32
        for encoder.engine in engines:
            found.append(everything(encoder, x, lengths))
    return found


@pytest.mark.parametrize("rates", [{}, {"dropout": 0.3, "memory_dropout": 0.2}], ids=str)
def test_the_reference_is_the_cell_slot_by_slot(rates):
    """Which autograd differentiates: encodings, nodes, trees and gradients, under the same dropout."""
    assert_same(*both_engines([6, 3, 1], engines=("torch", "reference"), **rates), atol=1e-11)


@pytest.mark.parametrize(
    "rates", [{}, {"dropout": 0.3}, {"memory_dropout": 0.3}, {"dropout": 0.2, "memory_dropout": 0.1}]
)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    slots=st.integers(1, 6),
    longest=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_engines_agree_under_the_same_dropout(rates, lengths, slots, longest, seed, workspaces):
    """Encodings, nodes, trees and gradients, with segments of any length: also where slots are still closed."""
    with pytest.MonkeyPatch.context() as patch:
        set_segments(patch, longest)
        assert_same(*both_engines(lengths, seed, slots=slots, **rates), atol=1e-11)


def test_a_graph_is_used_again_for_other_weights_inputs_and_lengths(workspaces, monkeypatch):
    monkeypatch.setattr(set_segments(monkeypatch, 3), "Captured", Replayed)
    for seed, lengths in enumerate(([8, 3], [2, 11], [5, 5], [2, 1])):
        assert_same(*both_engines(lengths, seed, slots=4, dropout=0.2, memory_dropout=0.1), atol=1e-11)
    assert len(workspaces) == 1


def test_engines_agree_where_p_is_hard(workspaces):
    """Many slots close again: their p is 0, and no gradient may be NaN."""
    for seed in range(3):
        assert_same(*both_engines([12, 7], seed, strength=1e4, slots=5), atol=1e-9)


@pytest.mark.usefixtures("shape_checks_off")  # they double the time
def test_engine_graph_keeps_a_fraction_of_what_torch_does(workspaces):
    """Candidates, masks of one byte, and the memory before each segment; nothing of the steps themselves."""
    x, lengths = inputs([33], dtype=torch.float32)
    encoder = make(slots=6, dropout=0.1, memory_dropout=0.1).float().train()
    kept = {}
    for encoder.engine in ("torch", "triton"):
        saved = {}
        with watch_saved(saved, [*encoder.parameters(), x]):
            state = encoder(x, lengths).state
        kept[encoder.engine] = sum(saved.values())
        assert state.requires_grad
    assert 0 < kept["triton"] < kept["torch"] / 3


def test_on_a_cpu_auto_is_torch(monkeypatch):
    monkeypatch.setattr(loops, "why_not_triton", lambda leaves: pytest.fail("asked for a graph"))
    encoder = make()
    assert encoder.engine == "auto"
    encoder(*inputs([4, 2]))


@pytest.mark.parametrize(
    ("dtype", "interpreted", "message"),
    [(torch.float64, True, "float32, not in torch.float64"), (torch.float32, False, "CUDA device, not on cpu")],
)
def test_what_cannot_be_captured_is_refused(dtype, interpreted, message, monkeypatch):
    """Also for one word, which takes no step."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreted)
    encoder = make(engine="triton").to(dtype)
    for length in (1, 4):
        with pytest.raises(EngineError, match=f"engine 'triton' cannot do this: .*{message}; engine 'auto' can"):
            encoder(*inputs([length], dtype=dtype))


@pytest.mark.usefixtures("shape_checks_off")  # they double the time
@pytest.mark.parametrize("engine", ["torch", "triton"])
def test_bfloat16_autocast_stays_close(engine, workspaces):
    torch.manual_seed(0)
    encoder = OrderedMemory(16, slots=3, engine="torch")
    x, lengths = inputs([5, 3], dim=16, dtype=torch.float32)
    exact = encoder(x, lengths).state
    encoder.engine = engine
    with torch.autocast("cpu", torch.bfloat16):
        near = encoder(x, lengths).state
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, atol=0.05, rtol=0.05)
    weights = [weight for name, weight in encoder.named_parameters() if name != "scorer.bias"]
    expected, found = (torch.autograd.grad(state.sin().sum(), weights) for state in (exact, near))
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-3


def test_an_unknown_engine_is_refused():
    with pytest.raises(
        ValueError,
        match="unknown engine 'tritons' \\(did you mean 'triton'\\?\\); known: auto, reference, torch, triton",
    ):
        OrderedMemory(6, engine="tritons")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots is 0"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"memory_dropout": -0.1}, r"memory_dropout is -0\.1"),
    ],
)
def test_wrong_options_are_refused(options, message, shape_checks_off):
    with pytest.raises(ValueError, match=message):
        OrderedMemory(6, **options)
