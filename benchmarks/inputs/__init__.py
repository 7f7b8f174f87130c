"""What the other commands measure with: `python -m benchmarks.inputs QUESTION`."""
