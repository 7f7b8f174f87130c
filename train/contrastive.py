"""InfoNCE over a batch, for batches of any size, and for vectors that may be cut short."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from train.parallel import ALONE, Processes
from train.seeds import random_states, set_random_states

Embed = Callable[[Sequence[int]], Tensor]
"""Embeds some examples of a batch, by their places in it, [n, D], with gradients."""


def info_nce(
    anchors: Tensor, candidates: Tensor, same: Tensor, *, scale: float, dimensions: Sequence[int] = ()
) -> Tensor:
    """Mean over anchors of -log softmax of the own candidate's cosine among all (van den Oord et al. 2018).

    Args:
        anchors: [B, D].
        candidates: [B + N, D]; the first B are the anchors' own, in order.
        same: bool [B, B + N], candidates that are an anchor's own text again and are no negatives.
        scale: factor on cosines, one over the temperature.
        dimensions: sizes at which vectors are cut, each with a loss of its own, whose mean it is (Matryoshka,
            Kusupati et al. 2022); empty for the whole vectors alone.
    """
    own = torch.arange(len(anchors), device=anchors.device)
    losses = []
    for size in dimensions or [anchors.shape[1]]:
        left, right = normalize(anchors[:, :size], dim=-1), normalize(candidates[:, :size], dim=-1)
        scores = scale * left @ right.T  # [B, B + N]
        losses.append(cross_entropy(scores.masked_fill(same, float("-inf")), own))
    return torch.stack(losses).mean()


def same_texts(candidates: Sequence[str], anchors: int) -> Tensor:
    """Candidates that are the text of an anchor's own candidate once more, bool [anchors, candidates]."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(candidates))}
    found = torch.tensor([numbers[text] for text in candidates])
    same = found[:anchors, None] == found[None, :]
    return same & ~torch.eye(anchors, len(candidates), dtype=torch.bool)


def backward_in_chunks(
    embed: Embed, count: int, chunk: int, loss_of: Callable[[Tensor], Tensor], processes: Processes = ALONE
) -> float:
    """The gradient of a loss on all embeddings of a batch, of which a chunk at a time is in memory with its graph.

    GradCache (Gao et al. 2021, arXiv 2101.06983): embed all without a graph, differentiate the loss by the embeddings,
    then embed each chunk again with its graph. What is drawn in training is drawn alike both times.

    Args:
        embed: embeds examples.
        count: examples of the batch.
        chunk: examples at a time.
        loss_of: the loss of all embeddings [count, D].
        processes: which share the batch; each embeds its own part.

    Returns:
        The loss.
    """
    own = range(count)[processes.rows(count)]
    chunks = [own[start : start + chunk] for start in range(0, len(own), chunk)]
    if len(chunks) == 1:
        loss = loss_of(processes.gather(embed(own), count))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()
    states, found = [], []
    with torch.no_grad():
        for places in chunks:
            states.append(random_states())
            found.append(embed(places))
    embeddings = processes.gather(torch.cat(found), count).requires_grad_(True)
    loss = loss_of(embeddings)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    after = random_states()
    for places, state in zip(chunks, states, strict=True):
        set_random_states(state)
        (embed(places) * gradient[places.start : places.stop]).sum().backward()  # type: ignore[no-untyped-call]
    set_random_states(after)
    return loss.item()
