"""Cells by name: functions R(left, right) that compose two children into their parent."""

from torch import nn

from beamtree.nn.cells.base import AnyCell, Cell, CellFunction, ModuleCell, OwnCell, function_of, gelu
from beamtree.nn.cells.grc import GRC
from beamtree.nn.cells.lstm import TreeLSTM
from beamtree.utils.checks import check_choice

__all__ = [
    "CELLS",
    "GRC",
    "AnyCell",
    "Cell",
    "CellFunction",
    "ModuleCell",
    "OwnCell",
    "TreeLSTM",
    "function_of",
    "gelu",
    "make_cell",
]

CELLS: dict[str, type[Cell]] = {"grc": GRC, "lstm": TreeLSTM}


def make_cell(
    cell: str | nn.Module, dim: int, dropout: float, state_dim: int | None = None, state_noise: float | None = None
) -> Cell:
    """Create a cell by its name, or wrap a user's own.

    Args:
        cell: "grc", "lstm", a `Cell`, or any module that maps two states to one.
        dim: width D of inputs and encodings.
        dropout: dropout rate inside the cell; it must be 0 for your own module.
        state_dim: the width of states that the encoder needs; None: any.
        state_noise: standard deviation of the noise that is added to new states during training; only for "grc". None:
            the encoder has no noise, and a cell with noise is refused.

    Returns:
        The cell.

    Raises:
        ValueError: if the cell is unknown, or if its widths do not fit.

    Examples:
        >>> from beamtree.nn.cells import make_cell
        >>> make_cell("lstm", dim=8, dropout=0.0).state_dim
        16
    """
    made = _make_cell(cell, dim, dropout, state_noise)
    if state_dim is not None and made.state_dim != state_dim:
        raise ValueError(
            f"the cell's states are {made.state_dim} wide: this encoder needs {state_dim}, the width of inputs"
        )
    return made


def _make_cell(cell: str | nn.Module, dim: int, dropout: float, state_noise: float | None) -> Cell:
    if state_noise:
        if cell != "grc":
            raise ValueError(f"state_noise is {state_noise}: it must be 0 with another cell than 'grc'")
        return GRC(dim, dropout, state_noise)
    if isinstance(cell, Cell):
        if cell.dim != dim:
            raise ValueError(f"the cell has dim {cell.dim} and the encoder {dim}: they must be equal")
        if dropout:
            raise ValueError(f"dropout is {dropout} with a cell of your own: give the rate to the cell instead")
        if cell.state_noise and state_noise is None:
            raise ValueError(f"the cell has state_noise {cell.state_noise}: it must be 0, this encoder adds no noise")
        return cell
    if isinstance(cell, nn.Module):
        if dropout:
            raise ValueError(
                f"dropout is {dropout} with a cell of your own: it must be 0, as the cell drops what it will"
            )
        return OwnCell(cell, dim)
    check_choice("cell", cell, tuple(CELLS))
    return CELLS[cell](dim, dropout)
