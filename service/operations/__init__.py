"""What the service does for a caller, from the validated request to the answer: one file an operation."""
