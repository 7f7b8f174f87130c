"""Beside other engines and servers: `python -m benchmarks peers QUESTION`."""
