"""Lines of a dictionary made into running text, for a student that copies a teacher.

Definitions are short and have no full stop. A student that has seen nothing else is further from its teacher on
sentences that end with one, and on several sentences together.
"""

from collections.abc import Sequence

import torch

from train.seeds import generator_of

FULL_STOP = "."
BETWEEN = (". ", ". ", ", ")
MOST_MORE = 2  # texts behind the first
DRAWN = 2  # apart from what else is drawn from a seed


def as_running_text(texts: Sequence[str], share: float, seed: int) -> list[str]:
    """Every text once, a share of them ended with a full stop, half of these behind one or two more texts."""
    generator = generator_of(seed, DRAWN)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    chosen = (torch.rand(len(texts), generator=generator) < share).tolist()
    made = list(texts)
    for place, is_chosen in enumerate(chosen):
        if is_chosen:
            row = texts[place].rstrip(FULL_STOP)
            for _ in range(draw(2) * (1 + draw(MOST_MORE))):
                row += BETWEEN[draw(len(BETWEEN))] + texts[draw(len(texts))].rstrip(FULL_STOP)
            made[place] = row + FULL_STOP
    return made
