"""Triton kernels. A file here imports from `common` and from cells' `device` alone; see `tests/conftest.py`."""
