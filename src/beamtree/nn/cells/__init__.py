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


def make_cell(cell: str | nn.Module, dim: int, dropout: float) -> Cell:
    """A new cell by its name, or a user's own: a `Cell`, or any module that maps two states to one."""
    if isinstance(cell, Cell):
        if cell.dim != dim:
            raise ValueError(f"the cell has dim {cell.dim} and the encoder {dim}: they must be equal")
        return cell
    if isinstance(cell, nn.Module):
        if dropout:
            raise ValueError(
                f"dropout is {dropout} with a cell of your own: it must be 0, as the cell drops what it will"
            )
        return OwnCell(cell, dim)
    check_choice("cell", cell, tuple(CELLS))
    return CELLS[cell](dim, dropout)
