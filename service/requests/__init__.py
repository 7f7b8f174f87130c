"""From a validated body to a plan: what is asked of the model, and how large the answer will be."""
