"""A user's own cell, any module that maps two states to one, in every encoder that takes one."""

import pytest
import torch
from torch import Tensor, nn

import beamtree
from beamtree.nn.cells import GRC, OwnCell, TreeLSTM, make_cell
from beamtree.nn.encoders import options
from support import assert_gradients_are_derivatives

DIM = 3
NAMES = [name for name in beamtree.encoders() if "cell" in options(name)]
# These read whole states as they read inputs.
AS_WIDE_AS_INPUTS = ("cyk-grc", "crvnn", "bsrp-grc")
WIDTHS = [(name, width) for name in NAMES for width in (DIM, DIM + 2) if width == DIM or name not in AS_WIDE_AS_INPUTS]
STRAIGHT_THROUGH = [
    name for name in NAMES if "gumbel" in name
]  # whose gradient is no derivative where there is a choice
SMALL = {"beam_size": 2, "samples": 2}


class Own(nn.Module):
    """tanh(W [l; r]) + (l − r) / 2: neither plain layers nor a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.state_dim = width
        self.weight = nn.Parameter(torch.randn(width, 2 * width))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(torch.cat((left, right), dim=-1) @ self.weight.T) + (left - right) / 2


def make(name: str, width: int = DIM, seed: int = 0, **given: object) -> nn.Module:
    """With a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    small = {option: value for option, value in SMALL.items() if option in options(name)}
    encoder = beamtree.encoder(name, dim=DIM, cell=Own(width), **small, **given).double()
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


@pytest.mark.parametrize(("name", "width"), WIDTHS)
def test_gradients_are_derivatives(name: str, width: int) -> None:
    encoder, (x, lengths) = make(name, width), inputs(*((2, 1) if name in STRAIGHT_THROUGH else (4, 2)))

    def outputs(x: Tensor, *weights: Tensor) -> Tensor:
        return encode(encoder, x, lengths).state

    assert encoder.cell.module.weight in set(encoder.parameters())
    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", [name for name in NAMES if "engine" in options(name)])
def test_gradients_are_those_of_the_reference(name: str) -> None:
    """Straight-through ones too."""
    x, lengths = inputs(5, 3)
    found = []
    for engine in ("auto", "reference"):
        encoder = make(name, engine=engine)
        state = encode(encoder, x.requires_grad_(), lengths).state
        wanted = (x, *encoder.parameters())
        gradients = torch.autograd.grad(state.sin().sum(), wanted, allow_unused=True, materialize_grads=True)
        found.append((state, *gradients))
    torch.testing.assert_close(*found, atol=1e-11, rtol=0)


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
