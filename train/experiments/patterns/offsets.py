"""How one head answers two offsets: the weights of the two places, and what is left of the answers without them."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from train.experiments.patterns.network import Network
from train.experiments.patterns.tasks import OFFSETS, PLACES, Examples

ASKED = [PLACES - offset for offset in OFFSETS]  # the places


def look_at_offsets(network: Network, judged: Examples) -> dict[str, Any]:
    """Measures the weights of the last place in networks of one layer and one head, and changes them.

    Args:
        network: R of them, trained on two offsets.
        judged: examples of each.

    Returns:
        Of each network the mean weight of each place (`place_weights`), how far the weights of the two asked places are
        apart in a text on average, and the answers that are right with both made equal in each text, and with each
        place's mean weight in every text.
    """
    found: dict[str, Any] = {"place_weights": [], "weight_difference": [], "right_if_equal": [], "right_if_mean": []}
    with torch.inference_mode():
        for seed, (ids, answers) in enumerate(zip(*judged, strict=True)):
            hidden = (network.tokens[seed][ids] * (ids > 0)[..., None]).sum(dim=2) + network.places[seed]  # [N, S, D]
            weights = last_weights(network, seed, hidden)
            equal = weights.clone()
            equal[:, ASKED] = weights[:, ASKED].mean(dim=1, keepdim=True)
            mean = weights.mean(dim=0)
            near, far = weights[:, ASKED].unbind(dim=1)
            found["place_weights"].append([round(weight, 5) for weight in mean.tolist()])
            found["weight_difference"].append(round(float((near - far).abs().mean()), 5))
            for name, changed in (("right_if_equal", equal), ("right_if_mean", mean.expand_as(weights))):
                right = logits_with(network, seed, hidden, changed).argmax(dim=-1) == answers
                found[name].append(round(float(right.float().mean()), 5))
    return found


def last_weights(network: Network, seed: int, hidden: Tensor) -> Tensor:
    """What the last place looks at, [N, S, D] -> [N, S]."""
    part, normed = network.parts[0], rms_norm(hidden, hidden.shape[-1:])
    query, key = normed[:, -1:] @ part["query"][seed], normed @ part["key"][seed]
    weights: Tensor = (query @ key.transpose(1, 2) / math.sqrt(network.row.d_k)).softmax(dim=-1)
    return weights[:, 0]


def logits_with(network: Network, seed: int, hidden: Tensor, weights: Tensor) -> Tensor:
    """The network's logits [N, A, C] with these weights [N, S] of the last place instead of its own."""
    part, size = network.parts[0], hidden.shape[-1:]
    value = rms_norm(hidden, size) @ part["value"][seed]
    own = hidden[:, -1] + (weights[:, :, None] * value).sum(dim=1) @ part["output"][seed]
    inner = rms_norm(own, size) @ part["up"][seed] + part["bias"][seed]
    own = own + inner.relu() @ part["down"][seed]
    logits: Tensor = rms_norm(own, size) @ network.answer[seed]
    return logits.view(len(logits), len(OFFSETS), -1)
