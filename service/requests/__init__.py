"""From a validated body to a plan, before the model runs: it knows a model's manifest, neither HTTP nor threads."""
