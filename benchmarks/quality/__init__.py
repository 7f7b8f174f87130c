"""What a precision, vectors in fewer bits and pruned heads cost: `python -m benchmarks quality QUESTION`."""
