"""Cells: the paper's equations, how their weights begin, and where dropout acts."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import beamtree
from beamtree.nn.cells import GRC, Cell, TreeLSTM
from support import BEAM_TREES

CELLS = [GRC, TreeLSTM]
DIM = 6


def layer_norm(p: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = p.mean(-1, keepdim=True)
    return (p - mean) / ((p - mean) ** 2).mean(-1, keepdim=True).add(1e-5).sqrt() * weight + bias


def grc_by_hand(cell: GRC, left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
    W1, b1, W2, b2, weight, bias = cell.parameters()
    a = torch.cat((left, right), -1) @ W1.T + b1
    g = a * (1 + torch.erf(a / math.sqrt(2))) / 2 * mask  # the exact GELU
    z, h, c, u = (g @ W2.T + b2).split(DIM, -1)
    return layer_norm(z.sigmoid() * left + h.sigmoid() * right + c.sigmoid() * u, weight, bias)


def tree_lstm_by_hand(cell: TreeLSTM, left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
    W, b = cell.parameters()
    (h_l, c_l), (h_r, c_r) = left.split(DIM, -1), right.split(DIM, -1)
    i, f_l, f_r, u, o = (torch.cat((h_l, h_r), -1) @ W.T + b).split(DIM, -1)
    c = c_l * (f_l + 1).sigmoid() + c_r * (f_r + 1).sigmoid() + u.tanh() * mask * i.sigmoid()
    return torch.cat((o.sigmoid() * c.tanh(), c), -1)


BY_HAND = {GRC: grc_by_hand, TreeLSTM: tree_lstm_by_hand}


def make(kind: type[Cell], dropout: float = 0.0) -> Cell:
    """A cell whose every weight matters: none is 0 or 1."""
    torch.manual_seed(0)
    cell = kind(DIM, dropout).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    return cell


def children(cell: Cell, *shape: int) -> tuple[Tensor, Tensor]:
    left, right = torch.randn(2, *shape, cell.state_dim, dtype=torch.float64)
    return left.requires_grad_(), right.requires_grad_()


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])
def test_a_cell_is_its_equations(kind: type[Cell], masked: bool) -> None:
    """The parent, and the gradients of both children and of every weight."""
    cell = make(kind)
    left, right = children(cell, 7)
    mask = torch.rand(7, cell.mask_dim, dtype=torch.float64) if masked else None
    parent = cell(left, right, mask)
    expected = BY_HAND[kind](cell, left, right, torch.ones((), dtype=torch.float64) if mask is None else mask)
    assert_close(parent, expected, atol=1e-12, rtol=0)
    inputs = (left, right, *cell.parameters())
    found, wanted = (torch.autograd.grad(p.sin().sum(), inputs) for p in (parent, expected))
    assert_close(found, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3, 4)], ids=str)
def test_nodes_may_have_any_leading_shape(kind: type[Cell], shape: tuple[int, ...]) -> None:
    cell = make(kind)
    left, right = children(cell, *shape)
    parents = cell(left, right)
    assert parents.shape == (*shape, cell.state_dim)
    assert_close(parents.view(-1, cell.state_dim), cell(left.view(-1, cell.state_dim), right.view(-1, cell.state_dim)))
    assert cell.leaf().double()(torch.randn(*shape, DIM, dtype=torch.float64)).shape == parents.shape


def test_a_leaf_of_a_grc_is_a_normalised_linear_map() -> None:
    linear, norm = leaf = make(GRC).leaf().double()
    x = torch.randn(5, DIM, dtype=torch.float64)
    assert_close(leaf(x), layer_norm(x @ linear.weight.T + linear.bias, norm.weight, norm.bias))


def test_a_leaf_of_a_tree_lstm_is_a_linear_map() -> None:
    leaf = make(TreeLSTM).leaf().double()
    x = torch.randn(5, DIM, dtype=torch.float64)
    assert_close(leaf(x), x @ leaf.weight.T + leaf.bias)


@pytest.mark.parametrize("name", BEAM_TREES)
def test_weights_begin_as_in_pytorch_but_for_the_tree_lstms(name: str) -> None:
    """Linear: uniform within ±1/√fan_in, weight and bias. LayerNorm: 1 and 0. Tree-LSTM: orthogonal and 0."""
    torch.manual_seed(0)
    encoder = beamtree.encoder(name, dim=128)
    layers = [layer for layer in encoder.modules() if list(layer.parameters(recurse=False))]
    for layer in layers:
        if isinstance(layer, nn.LayerNorm):
            assert (layer.weight == 1).all()
            assert (layer.bias == 0).all()
        elif name == "bt-lstm" and layer is encoder.cell.gates:
            assert_close(layer.weight.T @ layer.weight, torch.eye(256), atol=1e-5, rtol=0)
            assert (layer.bias == 0).all()
        else:
            bound = layer.in_features**-0.5
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2)
            assert 0 < layer.bias.abs().max() <= bound
    assert len(layers) == (3 if name == "bt-lstm" else 6)  # leaf and cell have a norm each


@pytest.mark.parametrize(("name", "count"), [("bt-grc", 411_393), ("bt-grc-onesoft", 411_393), ("bt-lstm", 197_633)])
def test_encoders_have_as_many_parameters_as_the_published_ones(name: str, count: int) -> None:
    assert sum(parameter.numel() for parameter in beamtree.encoder(name, dim=128).parameters()) == count


@pytest.mark.parametrize("kind", CELLS)
def test_without_a_mask_a_training_cell_draws_its_own(kind: type[Cell]) -> None:
    cell = make(kind, dropout=0.4)
    left, right = children(cell, 7)
    torch.manual_seed(1)
    parent = cell(left, right)
    torch.manual_seed(1)
    mask = F.dropout(torch.ones(7, cell.mask_dim, dtype=torch.float64), 0.4)
    assert_close(parent, BY_HAND[kind](cell, left, right, mask), atol=1e-12, rtol=0)
    assert not parent.equal(make(kind)(left, right))


@pytest.mark.parametrize("kind", CELLS)
def test_dropout_is_off_in_eval(kind: type[Cell]) -> None:
    cell = make(kind, dropout=0.4).eval()
    left, right = children(cell, 7)
    assert cell(left, right).equal(make(kind)(left, right))


@pytest.mark.parametrize("engine", ["reference", "torch"])
@pytest.mark.parametrize("name", BEAM_TREES)
def test_an_encoder_drops_only_while_it_trains(name: str, engine: str) -> None:
    torch.manual_seed(0)
    x, lengths = torch.randn(2, 6, DIM), torch.tensor([6, 4])
    encoder = beamtree.encoder(name, dim=DIM, dropout=0.4, stochastic=False, engine=engine)
    plain = beamtree.encoder(name, dim=DIM, stochastic=False, engine=engine)
    plain.load_state_dict(encoder.state_dict())
    assert not encoder(x, lengths).state.equal(plain(x, lengths).state)
    assert encoder.eval()(x, lengths).state.equal(plain.eval()(x, lengths).state)
