"""The benchmarks of the paper: reading, making, caching and batching them."""
