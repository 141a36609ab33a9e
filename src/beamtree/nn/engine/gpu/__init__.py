"""Engines on Triton: searches and loops in fused kernels and CUDA graphs."""
