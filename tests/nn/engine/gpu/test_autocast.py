"""Loops under autocast: products in bfloat16 in both passes, against engine "torch" under the same autocast."""

import pytest
import torch

pytest.importorskip("triton")

import beamtree
from beamtree.nn.cells.grc import dense
from beamtree.nn.engine.gpu import fold, segments
from support import Replayed, assert_same, everything, inputs

# Kernels take long without a GPU.
pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("shape_checks_off")]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {
    "crvnn": {"dropout": 0.2},
    "cyk-grc": {"dropout": 0.2},
    "bt-grc-soft": {"beam_size": 2, "stochastic": False},
    "ordered-memory": {"slots": 2, "dropout": 0.2, "memory_dropout": 0.2},
}
VARIANTS = [("crvnn", {"floor": "official"}), ("cyk-grc", {"masks": "official"})]
every_encoder = pytest.mark.parametrize("name", CASES)


def make(name, options=None):
    torch.manual_seed(0)
    options = CASES[name] if options is None else options
    return beamtree.encoder(name, dim=8, engine="triton", **options).to(DEVICE)


def batch():
    return (given.to(DEVICE) for given in inputs([3, 1], dim=8, dtype=torch.float32))


def under_autocast(encoder, x, lengths):
    with torch.autocast(DEVICE, torch.bfloat16):
        return everything(encoder, x, lengths)


def assert_near(found, truth):
    """To the eight binary digits of bfloat16: outputs element by element, gradients in norm. Gradients that are small
    are sums in which larger terms cancel."""
    for name, value in truth[0].items():
        assert found[0][name].dtype == torch.float32
        if "gradient" in name:
            assert (found[0][name] - value).norm() <= 4e-2 * (value.norm() + 0.1), name
        else:
            torch.testing.assert_close(found[0][name], value, atol=4e-2, rtol=4e-2)
    assert found[2] == truth[2]


@pytest.fixture
def methods(monkeypatch, workspaces):
    """Of all products in kernels, and of those for the gradients of the cell's weights."""
    monkeypatch.setattr(segments, "MAX_STEPS", 2)
    found = set()
    for module in (dense, fold):
        for name in ("tile", "weight_gradient"):
            function = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *given, call=function: found.add(given[-1]) or call(*given))
    return found


@pytest.mark.parametrize(("name", "options"), [*CASES.items(), *VARIANTS], ids=str)
def test_products_are_in_bfloat16(name, options, methods):
    """Near to those of engine "torch", and not as in float32."""
    encoder, (x, lengths) = make(name, options), batch()
    found = under_autocast(encoder, x, lengths)
    assert methods == {"bf16"}
    encoder.engine = "torch"
    assert_near(found, under_autocast(encoder, x, lengths))
    full = everything(encoder, x, lengths)
    for part in ("state", "gradient of x", "gradient of cell.gates.weight"):
        assert (found[0][part] - full[0][part]).norm() > 1e-3 * full[0][part].norm()


@every_encoder
def test_passes_in_two_precisions_do_not_touch_each_other(name, methods, monkeypatch):
    """They have the same shape, and graphs are replayed."""
    monkeypatch.setattr(segments, "Captured", Replayed)
    encoder, (x, lengths) = make(name), batch()
    rough = under_autocast(encoder, x, lengths)
    methods.clear()
    full = everything(encoder, x, lengths)
    assert methods in ({"ieee"}, {"split"})
    assert_same(under_autocast(encoder, x, lengths), rough, atol=0)
    assert_same(everything(encoder, x, lengths), full, atol=0)
    encoder.engine = "torch"
    assert_same(full, everything(encoder, x, lengths), atol=2e-5)


@every_encoder
def test_modules_in_bfloat16_have_products_in_bfloat16(name, methods):
    """Also in the backward pass, which runs outside the encoder."""
    encoder, (x, lengths) = make(name).bfloat16().eval(), batch()
    encoder(x.bfloat16(), lengths).state.sum().backward()
    assert methods == {"bf16"}


@pytest.mark.parametrize(("name", "layer"), [("crvnn", "window"), ("bt-grc-soft", "scorer"), ("ordered-memory", "key")])
def test_no_casts_of_old_weights_are_used(name, layer, methods, workspaces):
    """Although autocast keeps casts of weights until it ends. The layer is used in the loop only."""
    encoder, (x, lengths) = make(name).eval(), batch()
    with torch.autocast(DEVICE, torch.bfloat16), torch.no_grad():
        before = encoder(x, lengths).state
        for weight in getattr(encoder, layer).parameters():
            weight.add_(torch.randn_like(weight))
        after = encoder(x, lengths).state
        workspaces.clear()
        torch.clear_autocast_cache()
        assert torch.equal(after, encoder(x, lengths).state)
    assert not torch.equal(before, after)


@every_encoder
def test_autocast_in_float16_is_refused(name):
    encoder, (x, lengths) = make(name), batch()
    refused = pytest.raises(beamtree.EngineError, match=r"under autocast it takes bfloat16, not torch\.float16")
    with torch.autocast(DEVICE, torch.float16), refused:
        encoder(x, lengths)


def test_both_passes_of_a_chain_use_the_workspace_of_their_precision(workspaces):
    torch.manual_seed(0)
    encoder, (x, lengths) = beamtree.encoder("recurrent-grc", dim=8, engine="triton").to(DEVICE), batch()
    for count, bf16 in ((1, True), (2, False)):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            state = encoder(x, lengths).state
        state.sum().backward()
        assert len(workspaces) == count
