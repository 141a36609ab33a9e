"""CYK: every span is a mixture of its splits, whatever the pieces it is computed in."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from beamtree.nn.encoders import cyk
from beamtree.nn.encoders.cyk import CYK
from beamtree.nn.engine import cyk as engine
from beamtree.nn.engine.cyk import Spans, SplitMixer
from beamtree.trees import Tree
from golden_cases import FILES, Golden
from support import assert_batch_does_not_matter, assert_same, everything, inputs

GOLDEN = [path for path in FILES if path.stem.startswith("cyk-grc")]
masks = pytest.mark.parametrize("masks", ["exact", "official"])


def make(dim=6, seed=0, dtype=torch.float64, **options):
    """With a scorer strong enough to prefer some splits."""
    torch.manual_seed(seed)
    encoder = CYK(dim, **options).to(dtype)
    with torch.no_grad():
        encoder.scorer.weight.mul_(8)
    return encoder


def all_spans(encoder, leaves):
    """The equations of the docstring, span by span: {(start, end): (state, heaviest split)}."""
    n = len(leaves)
    found = {(i, i + 1): (leaf, None) for i, leaf in enumerate(leaves)}
    for words in range(2, n + 1):
        for start in range(n - words + 1):
            end = start + words
            middles = range(start + 1, end)
            parents = [encoder.cell(found[start, m][0], found[m, end][0]) for m in middles]
            parents = [parent / (parent.norm() + 1e-8) for parent in parents]
            alpha = torch.stack([encoder.scorer(parent).squeeze() for parent in parents]).softmax(0)
            state = sum(a * parent for a, parent in zip(alpha, parents, strict=True))
            found[start, end] = state, middles[int(alpha.argmax())]
    return found


def best_tree(found, start, end):
    if end - start == 1:
        return str(start)
    middle = found[start, end][1]
    return f"({best_tree(found, start, middle)} {best_tree(found, middle, end)})"


def gradients(loss, encoder, x):
    return torch.autograd.grad(loss, (x, *encoder.parameters()))


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_encodings_and_gradients_follow_the_equations(n):
    encoder = make()
    x, lengths = inputs([n])
    x = x.requires_grad_()
    out = encoder(x, lengths)
    expected = all_spans(encoder, encoder.leaf(x)[0])[0, n][0]
    assert_close(out.state[0], expected, atol=1e-12, rtol=0)
    loss, expected_loss = out.state.sin().sum(), expected.sin().sum()
    for a, b in zip(gradients(loss, encoder, x), gradients(expected_loss, encoder, x), strict=True):
        assert_close(a, b, atol=1e-12, rtol=0)


def test_the_tree_follows_the_heaviest_splits_and_its_nodes_are_those_of_the_chart():
    encoder = make()
    x, lengths = inputs([8, 5, 1])
    beams = encoder(x, lengths).beams
    assert beams.log_probs.tolist() == [[0], [0], [0]]
    for sample, n in enumerate(lengths.tolist()):
        found = all_spans(encoder, encoder.leaf(x)[sample, :n])
        assert beams.trees()[sample] == [Tree.parse(best_tree(found, 0, n))]
        mask = beams.nodes.mask[sample, 0]
        spans = [tuple(span) for span in beams.nodes.spans[sample, 0][mask].tolist()]
        assert sorted(spans) == sorted(beams.trees()[sample][0].spans())
        for span, state in zip(spans, beams.nodes.states[sample, 0][mask], strict=True):
            assert_close(state, found[span][0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_encodings_and_gradients_are_those_of_the_published_code(path):
    case = Golden(path)
    encoder = CYK(case.meta["dim"], masks="official").double().eval()
    names = {f"{a}.{kind}": f"{b}.{kind}" for a, b in CYK.OFFICIAL.items() for kind in ("weight", "bias")}
    encoder.load_state_dict({ours: case.parameters[theirs] for theirs, ours in names.items()})
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in names.items()}
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        assert_close(found, expected, atol=1e-12, rtol=0)


def test_masks_of_the_published_code_hardly_matter():
    exact, official = make(), make(masks="official")
    x, lengths = inputs([20, 9])
    difference = (exact(x, lengths).state - official(x, lengths).state).abs().max()
    assert 1e-9 < difference < 1e-6


@masks
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12)
def test_padding_and_batch_mates_never_change_an_encoding(masks, lengths, padding, seed):
    encoder = make(seed=seed, masks=masks)
    assert_batch_does_not_matter(encoder, lengths, padding, seed)


@masks
def test_one_word_is_its_leaf(masks):
    encoder = make(masks=masks)
    x, lengths = inputs([1])
    out = encoder(x, lengths)
    assert torch.equal(out.state, encoder.leaf(x)[:, 0])
    assert out.beams.trees() == [[Tree.parse("0")]]


@masks
def test_gradients_are_derivatives(masks):
    """Of encodings and of the tree's nodes, with dropout too: backward meets the masks of forward."""
    encoder = make(dim=3, dropout=0.3, masks=masks)
    x, lengths = inputs([4, 3, 1], dim=3)

    def outputs(x, *weights):
        out = encoder(x, lengths, generator=torch.Generator().manual_seed(1))
        return out.state, out.beams.nodes.states

    assert torch.autograd.gradcheck(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


@masks
def test_engines_agree(masks):
    """Outputs, trees and every gradient, under the same dropout."""
    encoders = (make(dropout=0.3, masks=masks, engine=engine) for engine in ("torch", "reference"))
    assert_same(*(everything(encoder, *inputs([7, 4, 1])) for encoder in encoders), atol=1e-11)


def test_every_parameter_but_the_bias_of_a_softmax_has_a_gradient():
    encoder = make()
    encoder(*inputs([6, 4])).state.sin().sum().backward()
    silent = [name for name, weight in encoder.named_parameters() if weight.grad.abs().max() < 1e-6]
    assert silent == ["scorer.bias"]


def test_frozen_weights_have_none_and_change_nothing_for_the_others():
    encoder = make()
    x, lengths = inputs([6, 4])
    encoder(x, lengths).state.sin().sum().backward()
    expected = encoder.scorer.weight.grad.clone()
    encoder.zero_grad()
    encoder.cell.requires_grad_(False)
    encoder(x, lengths).state.sin().sum().backward()
    assert_close(encoder.scorer.weight.grad, expected)
    assert all(weight.grad is None for weight in encoder.cell.parameters())


@pytest.mark.parametrize("at_once", [1, 5, 16])
def test_pieces_of_any_size_give_the_same(at_once, monkeypatch):
    encoder = make(dropout=0.2)
    x, lengths = inputs([9, 6, 2])
    whole = everything(encoder, x, lengths)
    monkeypatch.setattr(engine, "batch_size", lambda device: at_once)
    assert_same(whole, everything(encoder, x, lengths), atol=1e-12)


@pytest.mark.parametrize("longest_first", [False, True])
def test_pieces_hold_every_split_once_and_not_too_many(longest_first):
    lengths = torch.tensor([12, 1, 7])
    spans, rows, splits = Spans(lengths, 13), [], 0
    for piece in spans.pieces(20, longest_first):
        assert piece.children[0].numel() <= 20
        rows += range(piece.rows.start, piece.rows.stop)
        splits += piece.children[0].numel()
        earlier = piece.children < piece.rows.start
        assert earlier.all()
    assert sorted(rows) == list(range(3 * 13, spans.total))
    assert splits == spans.splits == sum(n * (n - 1) * (n + 1) // 6 for n in (12, 1, 7))


def test_what_is_kept_for_backward_does_not_grow_with_the_splits():
    encoder = make(dropout=0.1)
    sizes = {}

    def pack(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 8
        return tensor

    n = 40
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encoder(*inputs([n]))
    states = n * (n + 1) // 2 * 6
    weights = sum(weight.numel() for weight in encoder.parameters())
    assert sum(sizes.values()) < 1.5 * states + 2 * weights + 20 * n * 6


def test_what_does_not_fit_is_refused_before_any_work(monkeypatch):
    encoder = make(dim=128, dtype=torch.float32)
    x, lengths = inputs([2000], dim=128, dtype=torch.float32)
    encoder.leaf.forward = lambda x: pytest.fail("there was work")
    monkeypatch.setattr(cyk, "available_bytes", lambda device: 2**30)
    with pytest.raises(MemoryError, match=r"cyk-grc needs about 3\.\d GiB for 1 × 2000 words, and 1\.0 GiB are free"):
        encoder(x, lengths)
    with torch.no_grad(), pytest.raises(MemoryError, match=r"needs about 1\.\d GiB"):
        encoder(x, lengths)


def test_a_seeded_run_repeats_exactly_and_dropout_is_for_training():
    encoder = make(dropout=0.3)
    x, lengths = inputs([8, 5])
    assert_same(everything(encoder, x, lengths, seed=3), everything(encoder, x, lengths, seed=3), atol=0)
    assert not torch.equal(encoder(x, lengths).state, encoder(x, lengths).state)
    encoder.eval()
    assert torch.equal(encoder(x, lengths).state, encoder(x, lengths).state)


@masks
def test_bfloat16_autocast_stays_close(masks):
    encoder = make(dim=32, dtype=torch.float32, masks=masks)
    x, lengths = inputs([6, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths).state
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths).state
    assert close.dtype == torch.float32
    assert_close(close, exact, atol=0.05, rtol=0.05)
    weights = [weight for name, weight in encoder.named_parameters() if name != "scorer.bias"]  # its gradient is 0
    expected = torch.autograd.grad(exact.sin().sum(), weights)
    for a, b in zip(torch.autograd.grad(close.sin().sum(), weights), expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.1 * b.norm() + 1e-3


def test_backward_composes_under_the_autocast_of_forward(monkeypatch):
    encoder, seen, mix = make(dtype=torch.float32), [], SplitMixer.__call__

    def watched(*given):
        seen.append(torch.is_autocast_enabled("cpu"))
        return mix(*given)

    monkeypatch.setattr(SplitMixer, "__call__", watched)
    with torch.autocast("cpu", torch.bfloat16):
        state = encoder(*inputs([4], dtype=torch.float32)).state
    state.sum().backward()
    assert seen == [True] * 6


def test_weights_must_not_change_between_forward_and_backward():
    encoder = make()
    state = encoder(*inputs([6, 4])).state
    with torch.no_grad():
        encoder.cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, "dropout is 1.0: it must be a number from 0"),
        ({"masks": "soft"}, "unknown masks 'soft'"),
        ({"engine": "cuda"}, "unknown engine 'cuda'; known: auto, reference, torch, triton"),
    ],
)
def test_wrong_options_are_named(options, message, shape_checks_off):
    with pytest.raises(ValueError, match=message):
        CYK(4, **options)
