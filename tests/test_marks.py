"""The marks by which `make test-gpu` finds what runs on a CUDA device."""

from pathlib import Path

TESTS = Path(__file__).parent
CHOICE = "if torch.cuda.is_available() else"  # of the device for kernels, which the interpreter runs without a GPU


def test_what_runs_on_a_gpu_is_marked():
    for path in TESTS.glob("gpu/test_*.py"):
        assert "mark.gpu" in path.read_text(), f"{path} has no mark gpu"
    found = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__) and CHOICE in path.read_text()]
    assert found
    for path in (*found, TESTS / "nn/encoders/test_ndr_attention.py"):  # whose device is that of ndr_cases.py
        assert "mark.kernels" in path.read_text(), f"{path} has no mark kernels"
