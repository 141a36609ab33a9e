"""Weights of the published code fit ours by name and shape, or nothing is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from beamtree.nn.interop import load_official, official_names
from golden_cases import FILES, Golden

State = dict[str, Tensor]
KINDS = [path for path in FILES if path.stem in ("bt-grc-eval-0", "bt-lstm-eval-0", "bt-grc-onesoft-eval-0")]
kinds = pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem.removesuffix("-eval-0"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_published_parameter_has_its_place(path: Path, dtype: torch.dtype) -> None:
    case = Golden(path)
    encoder = case.encoder().to(dtype)
    names = official_names(encoder)
    assert set(names) == set(case.parameters)
    values = list(names.values())
    if path.stem.startswith("ordered-memory"):  # whose norm has three names there
        values = list(dict.fromkeys(values))
    assert sorted(values) == sorted(name for name, _ in encoder.named_parameters())
    load_official(encoder, case.parameters)
    for theirs, ours in names.items():
        assert encoder.get_parameter(ours).equal(case.parameters[theirs].to(dtype))
        assert encoder.get_parameter(ours).dtype == dtype


def without_one(state: State) -> State:
    return {name: value for name, value in state.items() if name != "decide_linear.bias"}


def with_others(state: State) -> State:
    return state | {"START": torch.zeros(12), "END": torch.zeros(12)}


def with_a_wider_one(state: State) -> State:
    return state | {"word_linear.weight": torch.zeros(99, 12)}


def with_everything_wrong(state: State) -> State:
    return with_a_wider_one(with_others(without_one(state)))


MISSING, EXTRA = ["missing decide_linear.bias"], ["unexpected START", "unexpected END"]
SHAPE = ["word_linear.weight has shape (99, 12), this encoder needs ("]


@kinds
@pytest.mark.parametrize(
    ("spoil", "problems"),
    [
        (without_one, MISSING),
        (with_others, EXTRA),
        (with_a_wider_one, SHAPE),
        (with_everything_wrong, MISSING + EXTRA + SHAPE),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(
    path: Path, spoil: Callable[[State], State], problems: list[str]
) -> None:
    """The error lists all that is wrong, and nothing else; the encoder stays as it was."""
    case = Golden(path)
    encoder = case.encoder()
    before = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
    with pytest.raises(ValueError, match="the state dict does not fit this encoder: ") as error:
        load_official(encoder, spoil(case.parameters))
    found = str(error.value).split(": ", 1)[1].split("; ")
    assert len(found) == len(problems)
    assert all(text.startswith(problem) for text, problem in zip(found, problems, strict=True))
    assert all(parameter.equal(before[name]) for name, parameter in encoder.named_parameters())


def test_weights_of_another_cell_are_refused() -> None:
    grc, lstm = (Golden(path) for path in FILES if path.stem in ("bt-grc-eval-0", "bt-lstm-eval-0"))
    with pytest.raises(ValueError, match=r"missing LN\.weight.*unexpected treecell_layer\.comp_linear\.weight"):
        load_official(grc.encoder(), lstm.parameters)


@pytest.mark.parametrize("function", [official_names, lambda encoder: load_official(encoder, {})])
def test_a_module_the_published_code_does_not_have_is_refused(function: Callable[[nn.Module], object]) -> None:
    with pytest.raises(ValueError, match="no weights of the published code are known for Linear"):
        function(nn.Linear(2, 2))


def test_loaded_weights_are_copies() -> None:
    case = Golden(KINDS[0])
    encoder = case.encoder()
    load_official(encoder, case.parameters)
    before = case.parameters["decide_linear.bias"].clone()
    with torch.no_grad():
        encoder.scorer.bias += 1
    assert case.parameters["decide_linear.bias"].equal(before)
