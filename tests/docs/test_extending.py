"""Every block of docs/guides/extending.md runs as it stands there."""

import os
import subprocess
import sys

import pytest

from doc_pages import DOCS, ROOT, blocks

BLOCKS = blocks(DOCS / "guides/extending.md", "python")


def test_the_blocks_of_the_page_run(tmp_path):
    """From files, as Triton reads the source of its kernels; in one process of their own, which has no shape checks."""
    pytest.importorskip("triton")
    assert len(BLOCKS) == 7
    files = [tmp_path / f"block_{number}.py" for number in range(len(BLOCKS))]
    for file, code in zip(files, BLOCKS, strict=True):
        file.write_text(code)
    script = "import runpy, sys\nfor file in sys.argv[1:]:\n    runpy.run_path(file, run_name='__main__')\n"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    environment |= {"BEAMTREE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", script, *reversed(files)]  # the last one chooses the interpreter
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no batch" in done.stdout
