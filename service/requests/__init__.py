"""From a validated body to a plan: the requested outputs, and how large the answer will be."""
