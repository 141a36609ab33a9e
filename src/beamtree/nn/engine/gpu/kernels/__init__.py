"""Triton kernels. A file here imports from `common` alone; see `tests/conftest.py`."""
