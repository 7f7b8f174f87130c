"""The engine alone: `python -m benchmarks.engine QUESTION`."""
