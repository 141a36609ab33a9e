"""A user's own cell, any module that maps two states to one, in every encoder that composes with a cell."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import beamtree
from beamtree.nn.cells import GRC, OwnCell, TreeLSTM, make_cell
from beamtree.nn.encoders import options
from idioms import CELLS, REFERENCE
from support import assert_gradients_are_derivatives
from toy_cells import FunctionalTanh, Tanh

DIM = 3
NAMES = [name for name in beamtree.encoders() if "cell" in options(name)]
# These read whole states as they read inputs.
AS_WIDE_AS_INPUTS = ("cyk-grc", "ordered-memory", "crvnn", "bsrp-grc")
STRAIGHT_THROUGH = [
    name for name in NAMES if "gumbel" in name
]  # whose gradient is no derivative where there is a choice
SMALL = {"beam_size": 2, "samples": 2, "slots": 3}
SMALL_OF = {"bt-grc-soft": {"beam_size": 3, "epsilon": 0.5}}  # whose transport converges soon


class Own(nn.Module):
    """tanh(W [l; r]) + (l − r) / 2: neither plain layers nor a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.state_dim = width
        self.weight = nn.Parameter(torch.randn(width, 2 * width))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(torch.cat((left, right), dim=-1) @ self.weight.T) + (left - right) / 2


class Noisy(Own):
    """Draws its own dropout masks, from PyTorch's global generator."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.dropout = nn.Dropout(0.4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.dropout(super().forward(left, right)) + (left + right) / 3


class Wrapped(nn.Module):
    """A GRC that nobody can recognise."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.state_dim, self.inner = dim, GRC(dim)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.inner(left, right)


Making = Callable[[], str | nn.Module]
KINDS: dict[str, Making] = {
    "module": lambda: Own(DIM),
    "module with dropout": lambda: Noisy(DIM),
    "wide module": lambda: Own(DIM + 2),
    "cell": lambda: Tanh(DIM),
    "cell with dropout": lambda: Tanh(DIM, dropout=0.3),
    "functional cell": lambda: FunctionalTanh(DIM, dropout=0.3),
    "GRC": lambda: GRC(DIM, dropout=0.3),
    "lstm": lambda: "lstm",
}
WIDE = ("wide module", "lstm")


def make(name: str, kind: str | Making = "module", seed: int = 0, **given: object) -> nn.Module:
    """With a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    cell = (KINDS[kind] if isinstance(kind, str) else kind)()
    small = {option: value for option, value in SMALL.items() if option in options(name)} | SMALL_OF.get(name, {})
    encoder = beamtree.encoder(name, dim=DIM, cell=cell, **small, **given).double()
    assert isinstance(cell, str) or cell in set(encoder.modules())
    if hasattr(encoder, "scorer"):
        nn.init.normal_(encoder.scorer.weight, std=2.0)
    return encoder


def encode(encoder: nn.Module, x: Tensor, lengths: Tensor) -> beamtree.Encoding:
    """Under the same noise each time; a gold tree leans to the left."""
    chains = [beamtree.Tree.from_actions([0] * (length - 1)) for length in lengths.tolist()]
    given = {"trees": chains} if encoder.needs_trees else {}
    return encoder(x, lengths, generator=torch.Generator().manual_seed(1), **given)


def inputs(*lengths: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(lengths), max(lengths), DIM, dtype=torch.float64, generator=generator)
    return x, torch.tensor(lengths)


def test_every_encoder_that_composes_with_a_cell_takes_one() -> None:
    assert NAMES == CELLS
    assert len(NAMES) == 16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_derivatives(name: str, kind: str) -> None:
    if kind in WIDE and name in AS_WIDE_AS_INPUTS:
        with pytest.raises(
            ValueError, match=r"^the cell's states are \d wide: this encoder needs 3, the width of inputs"
        ):
            make(name, kind)
        return
    encoder, (x, lengths) = make(name, kind), inputs(*((2, 1) if name in STRAIGHT_THROUGH else (4, 2)))

    def outputs(x: Tensor, *weights: Tensor) -> Tensor:
        torch.manual_seed(0)  # for cells that draw
        return encode(encoder, x, lengths).state

    assert set(encoder.cell.parameters()) <= set(encoder.parameters())
    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


def outputs_and_gradients(encoder: nn.Module, x: Tensor, lengths: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    x = x.detach().requires_grad_()
    state = encode(encoder, x, lengths).state
    wanted = {"x": x, **dict(encoder.named_parameters())}
    found = torch.autograd.grad(state.sin().sum(), tuple(wanted.values()), allow_unused=True, materialize_grads=True)
    return state.detach(), dict(zip(wanted, found, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (*WIDE, "module with dropout")])
@pytest.mark.parametrize("name", [name for name in NAMES if name in REFERENCE])
def test_gradients_are_those_of_the_reference(name: str, kind: str) -> None:
    """Straight-through ones too."""
    found = [outputs_and_gradients(make(name, kind, engine=engine), *inputs(5, 3)) for engine in ("auto", "reference")]
    torch.testing.assert_close(*found, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_grc_gives_what_the_grc_gives(name: str) -> None:
    """Encodings, and gradients of x and of all weights, with the built-in path as the truth."""
    own, plain = make(name, lambda: Wrapped(DIM)), make(name, lambda: "grc")
    inner = "cell.module.inner"
    to_plain = {key: key.replace(inner, "cell") for key, _ in own.named_parameters()}
    if name == "ordered-memory":  # the built-in leaf transform has no layer norm but the cell's
        to_plain |= {
            key: key.replace("leaf.0", "leaf").replace("leaf.1", "cell.norm") for key in to_plain if "leaf" in key
        }
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in plain.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
        for key, weight in own.named_parameters():
            weight.copy_(plain.get_parameter(to_plain[key]))
    state, gradients = outputs_and_gradients(own, *inputs(5, 3, 1))
    expected_state, expected = outputs_and_gradients(plain, *inputs(5, 3, 1))
    torch.testing.assert_close(state, expected_state, atol=1e-11, rtol=0)
    found = {"x": gradients["x"]} | {key: torch.zeros_like(expected[key]) for key in to_plain.values()}
    for key, ours in to_plain.items():
        found[ours] += gradients[key]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_with_the_encoder(name: str) -> None:
    encoder, (x, lengths) = make(name), inputs(5, 3)
    encode(encoder, x, lengths).state.sin().sum().backward()
    assert encoder.cell.module.weight.grad.abs().max() > 1e-6
    assert "cell.module.weight" in encoder.state_dict()


def test_a_state_is_as_wide_as_the_cell_says() -> None:
    cell = make_cell(Own(5), 3, 0.0)
    assert isinstance(cell, OwnCell)
    assert (cell.dim, cell.state_dim) == (3, 5)
    assert cell.leaf()(torch.zeros(2, 3)).shape == (2, 5)
    assert make_cell(nn.Bilinear(3, 3, 3), 3, 0.0).state_dim == 3  # says nothing: as wide as the inputs
    assert cell.function() is None


@pytest.mark.parametrize(("name", "kind"), [("grc", GRC), ("lstm", TreeLSTM)])
def test_cells_have_names(name: str, kind: type) -> None:
    cell = make_cell(name, 4, 0.25)
    assert type(cell) is kind
    assert (cell.dim, cell.dropout) == (4, 0.25)


def test_a_cell_of_ours_is_taken_as_it_is() -> None:
    cell = GRC(4, dropout=0.5)
    assert make_cell(cell, 4, 0.0) is cell
    with pytest.raises(ValueError, match=r"^the cell has dim 4 and the encoder 6: they must be equal$"):
        make_cell(cell, 6, 0.0)


def test_dropout_is_the_own_cells_matter() -> None:
    with pytest.raises(ValueError, match=r"^dropout is 0\.1 with a cell of your own: it must be 0"):
        beamtree.encoder("bt-grc", dim=3, dropout=0.1, cell=Own(3))


class Pair(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left, right


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gold-tree-grc"])
@pytest.mark.parametrize(("cell", "found"), [(nn.Bilinear(3, 3, 4), r"shape \(.*, 4\)"), (Pair(), "type tuple")])
def test_a_result_that_is_no_state_is_refused(name: str, cell: nn.Module, found: str) -> None:
    with pytest.raises(ValueError, match=rf"^the cell returned a result of {found} for children of shape \(.*, 3\)"):
        beamtree.encoder(name, dim=3, cell=cell)(torch.randn(2, 5, 3))
