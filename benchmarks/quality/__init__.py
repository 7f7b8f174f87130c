"""What a precision and pruned heads cost: `python -m benchmarks.quality QUESTION`."""
