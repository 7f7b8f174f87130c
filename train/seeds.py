"""Random numbers that depend on where in a run they are drawn, and those that depend on what was drawn before."""

import numpy as np
import torch
from torch import Tensor


def generator_of(*parts: int) -> torch.Generator:
    """A generator for a seed and, say, an epoch or a step; other parts give unrelated numbers."""
    # torch's generator takes 32 bits of a seed: a step in higher ones would change nothing.
    return torch.Generator().manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))


def random_states() -> list[Tensor]:
    """States of the generators of torch: the CPU's, and those of the GPUs."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def set_random_states(states: list[Tensor]) -> None:
    """Goes back to where `random_states` was called."""
    torch.set_rng_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])
