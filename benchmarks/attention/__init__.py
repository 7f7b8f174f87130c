"""Attention weights: `python -m benchmarks attention QUESTION`."""
