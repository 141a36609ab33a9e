"""What every test runs under: shape checks, NaN in unwritten memory, repeatable examples, GPU skips."""

import contextlib
import functools
import gc
import importlib.util
import itertools
import os
import re
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch.utils._device import _device_constructors


def installed(name):
    return importlib.util.find_spec(name) is not None


PACKAGE = Path(__file__).parents[1] / "src/beamtree"


def module_name(path):
    parts = ("beamtree", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def modules_with_shapes():
    return [module_name(path) for path in PACKAGE.rglob("*.py") if "from jaxtyping import" in path.read_text()]


if installed("triton"):
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU, slowly
        interpreter = importlib.import_module("interpreter")
        interpreter.speed_up()
    # Triton reads the source of its kernels, which must be as it was written: imported before the hook is there.
    # First `common` and the device functions of the cells, from which the others import.
    shared = (PACKAGE / "nn/engine/gpu/kernels/common.py", *PACKAGE.glob("nn/cells/*/device.py"))
    files = sorted(set(PACKAGE.glob("nn/engine/gpu/kernels/[a-z]*.py")) - set(shared))
    for path in (*shared, *files, *PACKAGE.glob("nn/cells/*/*kernels.py")):
        name = module_name(path)
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])

# Must come before the first import of beamtree. Optional, as is hypothesis: a GPU machine may have neither. Modules
# without shapes are left to mypy: checks of every call take a fifth of the time of the tests of ListOps.
if installed("beartype"):
    jaxtyping.install_import_hook(modules_with_shapes(), "beartype.beartype")

if installed("hypothesis"):
    from hypothesis import settings

    # No deadline: a first call may compile. Derandomised: a failure seen once is seen by everyone.
    settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("ci")

# Packages that single files of the tests import, and that a GPU machine may lack.
missing = [name for name in ("hypothesis", "nbformat", "PYEVALB") if not installed(name)]
imports = re.compile(rf"^(from|import) ({'|'.join(missing)})\b", re.MULTILINE)
# Read by pytest: files that it leaves out.
tests = Path(__file__).parent.rglob("test_*.py") if missing else ()
collect_ignore = [str(path) for path in tests if imports.search(path.read_text())]

CHECKED_EXAMPLES = 10  # of this many examples of a property test, one runs under shape checks, which take half the time

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers already fill the cores


def pytest_report_header():
    return f"not installed: {', '.join(missing)}; {len(collect_ignore)} files are left out" if missing else None


def pytest_collection_modifyitems(items):
    for test in {item.function for item in items if hasattr(item.function, "hypothesis")}:
        test.hypothesis.inner_test = sometimes_checked(test.hypothesis.inner_test)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """The modules and thousands of tests stay to the end: no garbage collection need look through them again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # for the clean-up at exit


def sometimes_checked(test):
    """The function of a property test with shape checks in its first example and in some of the others."""
    examples = itertools.count()

    @functools.wraps(test)
    def wrapper(*args, **kwargs):
        from support import no_shape_checks  # which imports beamtree: not before the hook is there

        with no_shape_checks() if next(examples) % CHECKED_EXAMPLES else contextlib.nullcontext():
            return test(*args, **kwargs)

    return wrapper


def nan_filled(allocate):
    """The allocator with NaN in place of whatever the memory held before."""

    @functools.wraps(allocate)
    def wrapper(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        if tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex()):
            with torch.no_grad():  # the caller may have asked for requires_grad=True
                tensor.fill_(float("nan"))
        return tensor

    return wrapper


@pytest.fixture(scope="session", autouse=True)
def uninitialised_memory_is_nan():
    """Code that reads memory nothing has written must fail, not work by luck of a zeroed page."""
    _device_constructors()  # cached at first use: `with torch.device(...)` must know the original functions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", nan_filled(torch.empty))
        patch.setattr(torch, "empty_like", nan_filled(torch.empty_like))
        patch.setattr(torch.Tensor, "new_empty", nan_filled(torch.Tensor.new_empty))
        yield


@pytest.fixture
def shape_checks_off():
    """As for users: the checks that tests run under would object first, in words for developers."""
    from support import no_shape_checks  # which imports beamtree: not before the hook is there

    with no_shape_checks():
        yield


@pytest.fixture
def workspaces():
    """The cache of workspaces, which is empty at the start of a test and after it."""
    pytest.importorskip("triton")
    from beamtree.nn.engine.gpu.cache import CACHE

    CACHE.clear()
    yield CACHE
    CACHE.clear()
