"""The service as a process: `python -m benchmarks service QUESTION`."""
