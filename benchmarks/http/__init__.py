"""The service over HTTP: `python -m benchmarks http QUESTION`."""
