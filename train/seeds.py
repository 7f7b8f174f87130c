"""Random numbers that depend on where in a run they are drawn, not on what was drawn before."""

import numpy as np
import torch


def generator_of(*parts: int) -> torch.Generator:
    """A generator for a seed and, say, an epoch or a step; other parts give unrelated numbers."""
    # torch's generator takes 32 bits of a seed: a step in higher ones would change nothing.
    return torch.Generator().manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))
