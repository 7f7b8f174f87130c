"""How one head answers two offsets: the weights of the two places, and what is left of the answers without them."""

from typing import Any

import torch

from train.experiments.patterns.network import Network
from train.experiments.patterns.tasks import OFFSETS, PLACES, Examples

ASKED = [PLACES - offset for offset in OFFSETS]  # the places


def look_at_offsets(network: Network, judged: Examples) -> dict[str, list[Any]]:
    """Measures the weights of the last place in networks of one layer and one head, and changes them.

    Returns:
        Of each network the mean weight of each place (`place_weights`), how far the weights of the two asked places are
        apart in a text on average, and the answers that are right with both made equal in each text, and with each
        place's mean weight in every text.
    """
    ids, answers = judged
    with torch.inference_mode():
        network(ids)
        weights = network.last_weights[:, :, 0, 0]  # [R, N, S]
        equal, asked = weights.clone(), weights[..., ASKED]
        equal[..., ASKED] = asked.mean(dim=2, keepdim=True)
        mean = weights.mean(dim=1, keepdim=True)  # [R, 1, S]
        found = {"place_weights": mean[:, 0], "weight_difference": (asked[..., 0] - asked[..., 1]).abs().mean(dim=1)}
        for name, changed in (("right_if_equal", equal), ("right_if_mean", mean.expand_as(weights))):
            right = network(ids, weights=changed[:, :, None, None]).argmax(dim=-1) == answers  # [R, N, A]
            found[name] = right.float().mean(dim=(1, 2))
    return {name: figures.double().round(decimals=5).tolist() for name, figures in found.items()}
