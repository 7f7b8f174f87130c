"""The head report as one HTML page with its plots inside: no script, nothing loaded from anywhere."""
