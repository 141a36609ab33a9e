"""Cells as functions of tensors: when a cell has this form, whose weights it reads, and how it is told from others."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from beamtree.nn.cells import GRC, Cell, CellFunction, ModuleCell, TreeLSTM, function_of

DIM = 4
LAYERS = {GRC: ("expand", "gates", "norm"), TreeLSTM: ("gates",)}
cells = pytest.mark.parametrize("kind", LAYERS)
every_layer = pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in LAYERS for name in LAYERS[kind]])


def make(kind: type[Cell], seed: int = 0) -> Cell:
    """A cell whose every weight matters: none is 0 or 1."""
    torch.manual_seed(seed)
    cell = kind(DIM).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    return cell


def children(cell: Cell) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    left, right = torch.randn(2, 3, cell.state_dim, dtype=torch.float64)
    return left, right


def result(compose: Callable[..., Tensor], cell: Cell, wanted: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The parents, and the gradients of these tensors."""
    parents = compose(*children(cell))
    return parents, *torch.autograd.grad(parents.sin().sum(), wanted)


@cells
@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])
def test_the_function_composes_as_the_module_does(kind: type[Cell], masked: bool) -> None:
    cell = make(kind)
    function, (left, right) = cell.function(), children(cell)
    mask = torch.rand(3, cell.mask_dim, dtype=torch.float64) if masked else None
    assert (function.dim, function.state_dim) == (cell.dim, cell.state_dim)
    assert torch.equal(function(left, right, mask), cell(left, right, mask))


@cells
def test_its_weights_are_the_parameters_themselves(kind: type[Cell]) -> None:
    cell = make(kind)
    weights = cell.function().weights
    assert len(weights) == cell.function().COUNT
    assert all(weight is parameter for weight, parameter in zip(weights, cell.parameters(), strict=True))


@cells
def test_without_a_mask_it_drops_nothing(kind: type[Cell]) -> None:
    """The masks of a pass are the engine's matter."""
    cell = kind(DIM, dropout=0.5).double()
    assert torch.equal(cell.train().function()(*children(cell)), cell.eval()(*children(cell)))


def hooked(layer: nn.Module, register: str) -> nn.Module:
    getattr(layer, register)(lambda *_: None)
    return layer


def derived(layer: nn.Module) -> nn.Module:
    """Of another class, which may compute anything."""
    layer.__class__ = type("Derived", (type(layer),), {})
    return layer


def replaced(layer: nn.Module) -> nn.Module:
    layer.forward = layer.forward
    return layer


def without_bias(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.LayerNorm):
        return nn.LayerNorm(layer.normalized_shape, bias=False, dtype=torch.float64)
    return nn.Linear(layer.in_features, layer.out_features, bias=False, dtype=torch.float64)


def of_another_tensor(layer: nn.Module) -> nn.Module:
    """Tensors of a class of their own, as quantised ones are."""
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(type("Own", (Tensor,), {})))
    return layer


HOOKS = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
CHANGES = {
    **{hook: lambda layer, hook=hook: hooked(layer, f"register_{hook}") for hook in HOOKS},
    "subclass": derived,
    "wrapper": nn.Sequential,
    "forward": replaced,
}


@every_layer
@pytest.mark.parametrize(
    "change", [*CHANGES.values(), without_bias, of_another_tensor], ids=[*CHANGES, "no-bias", "tensor-subclass"]
)
def test_a_cell_whose_layers_are_not_plain_has_no_function(kind: type[Cell], name: str, change: Callable) -> None:
    """Engines then call the module, whatever its layers do."""
    cell = make(kind)
    setattr(cell, name, change(getattr(cell, name)))
    assert cell.function() is None
    own = function_of(cell)
    assert isinstance(own, ModuleCell)
    assert torch.equal(own(*children(cell)), cell(*children(cell)))


@cells
@pytest.mark.parametrize("name", [name for name in CHANGES if name != "wrapper"])
def test_a_cell_that_is_not_plain_itself_has_no_function(kind: type[Cell], name: str) -> None:
    cell = CHANGES[name](make(kind))
    assert cell.function() is None
    assert isinstance(function_of(cell), ModuleCell)


@cells
def test_a_hook_that_is_gone_leaves_nothing_behind(kind: type[Cell]) -> None:
    cell = make(kind)
    handle = cell.gates.register_forward_hook(lambda *_: None)
    assert cell.function() is None
    handle.remove()
    assert isinstance(function_of(cell), CellFunction)


@every_layer
def test_a_parametrized_layer_is_plain(kind: type[Cell], name: str) -> None:
    """Its function reads the weight that the parametrization makes, and gradients reach what that is made from."""
    cell = make(kind)
    weight_norm(getattr(cell, name), dim=None)
    function = cell.function()
    assert isinstance(function, CellFunction)
    wanted = tuple(cell.parameters())
    assert len(wanted) == function.COUNT + 1  # length and direction
    assert_close(result(function, cell, wanted), result(cell, cell, wanted), atol=1e-13, rtol=0)


class Composer(nn.Module):
    """Makes the function when it is called, as encoders do, and composes with it later."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self) -> CellFunction:
        return self.cell.function()


@cells
@pytest.mark.parametrize("parametrized", [False, True])
def test_the_tensors_are_those_of_the_call(kind: type[Cell], parametrized: bool) -> None:
    """Under `functional_call` those given to it, also after the module has its own again."""
    cell, other = make(kind), make(kind, seed=5)
    for changed in (cell, other):
        if parametrized:
            weight_norm(changed.gates, dim=None)
    given = {f"cell.{name}": (2 * weight.detach()).requires_grad_() for name, weight in other.named_parameters()}
    function = functional_call(Composer(cell), given, ())
    with torch.no_grad():
        for name, weight in other.named_parameters():
            weight.copy_(given[f"cell.{name}"])
    found = result(function, cell, tuple(given.values()))
    assert_close(found, result(other, other, tuple(other.parameters())), atol=1e-13, rtol=0)
    assert not torch.isclose(found[0], cell(*children(cell))).all()


@cells
def test_a_function_of_other_weights(kind: type[Cell]) -> None:
    """`bind` changes the weights alone, and leaves the original as it was."""
    cell, other = make(kind), make(kind, seed=5)
    function, weights = cell.function(), list(other.parameters())
    bound = function.unbound.bind(weights)
    assert all(a is b for a, b in zip(bound.weights, weights, strict=True))
    assert torch.equal(bound(*children(cell)), other(*children(cell)))
    assert torch.equal(function(*children(cell)), cell(*children(cell)))
    assert function.unbound.weights == ()


def with_eps(eps: float) -> GRC:
    cell = GRC(DIM)
    cell.norm.eps = eps
    return cell


def test_without_weights_functions_are_keys() -> None:
    """Equal for cells that compute the same function of their weights, whatever these are, and for no others."""
    kinds = {
        "GRC": (GRC(DIM), GRC(DIM, dropout=0.5).double()),
        "GRC, wider": (GRC(DIM + 1), GRC(DIM + 1)),
        "GRC, another ε": (with_eps(1e-3), with_eps(1e-3)),
        "Tree-LSTM": (TreeLSTM(DIM), TreeLSTM(DIM).requires_grad_(False)),
        "Tree-LSTM, wider": (TreeLSTM(DIM + 1), TreeLSTM(DIM + 1)),
    }
    found = {}
    for name, (one, other) in kinds.items():
        assert one.function().unbound == other.function().unbound
        assert hash(one.function().unbound) == hash(other.function().unbound)
        found[one.function().unbound] = name
    assert list(found.values()) == list(kinds)


def test_layers_of_other_widths_or_kinds_are_not_plain():
    """Kernels know the widths of a GRC; a cell with others is called as a module."""
    cell = GRC(4)
    cell.expand, cell.gates = nn.Linear(8, 32), nn.Linear(32, 16)
    assert cell.function() is None
    cell = GRC(4)
    cell.norm = nn.Linear(4, 4)
    assert cell.function() is None
    lstm = TreeLSTM(4)
    lstm.gates = nn.Linear(8, 24)
    assert lstm.function() is None
