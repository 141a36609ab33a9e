"""Benchmarks: time and memory of every engine."""
