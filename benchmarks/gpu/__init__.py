"""A graphics card: `python -m benchmarks.gpu QUESTION`."""
