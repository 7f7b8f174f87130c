"""Embeddings of many texts with a network as it stands, and what a network's layers give on the way."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from export.similarity import row_cosines
from model.encoder import Encoder, EncoderLayer
from train.batching import TokenBatch, TokenIds

MOST_TOKENS = 4096  # of one batch


def embed_ids(encoder: Encoder, texts: TokenIds, device: torch.device) -> Tensor:
    """Normalised embeddings [texts, D] on the CPU, in evaluation mode, in the order of the texts."""
    was_training = encoder.training
    encoder.eval()
    found = torch.zeros(len(texts.ids), encoder.config.embedding_size)
    with torch.inference_mode():
        for places in batches_by_length(texts.lengths):
            found[places] = normalize(run(encoder, texts.batch(places).to(device)), dim=-1).cpu()
    encoder.train(was_training)
    return found


def run(encoder: Encoder, batch: TokenBatch, head_gates: Tensor | None = None) -> Tensor:
    """The task's output of a batch."""
    output = encoder.use("sdpa")(
        batch.input_ids, batch.lengths, token_type_ids=batch.token_type_ids, head_gates=head_gates
    )
    found: Tensor = output.task_output
    return found


def batches_by_length(lengths: list[int]) -> Iterator[list[int]]:
    """Places of all texts, shortest first, in batches of at most 4096 tokens with padding."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[place] > MOST_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def encoder_layers(encoder: Encoder) -> list[EncoderLayer]:
    """The layers, typed as what they are."""
    return [cast(EncoderLayer, layer) for layer in encoder.layers]


@contextmanager
def layer_outputs(encoder: Encoder) -> Iterator[list[Tensor]]:
    """While this holds, the list has the last run's hidden states [T, D], a layer each."""
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[object, ...], output: tuple[Tensor, object]) -> None:
        del inputs
        if module is encoder.layers[0]:
            found.clear()
        found.append(output[0])

    with ExitStack() as hooks:
        for layer in encoder.layers:
            hooks.enter_context(layer.register_forward_hook(keep))
        yield found


ROUNDING = 1e-6  # two equal vectors differ by less in a product, by their place in the matrix


def cosine_figures(found: Tensor, expected: Tensor) -> dict[str, float]:
    """Cosine of each vector with its counterpart, [N, D] each: the mean, the first percentile and the worst.

    A text without tokens, whose vector is 0, counts in none of them. All are NaN if a vector is.
    """
    has_tokens = (found != 0).any(dim=1) & (expected != 0).any(dim=1)
    cosines = row_cosines(found.numpy(), expected.numpy())
    cosines = cosines[has_tokens.numpy()] if has_tokens.any() else cosines
    return {
        "cosine_mean": float(cosines.mean()),
        "cosine_first_percentile": float(np.quantile(cosines, 0.01)),
        "cosine_worst": float(cosines.min()),
    }


def recall(queries: Tensor, documents: Tensor, pairs: Sequence[tuple[int, int]], *, depth: int) -> float:
    """Percent of a query's own documents that are among the `depth` nearest, mean over queries.

    A document that is not farther than an own one counts as nearer, so that a network of equal vectors, or of vectors
    that are no numbers, finds nothing.

    Vectors of the queries [Q, D] and documents [N, D] are normalised, and each is of another text; `pairs` are the
    places of queries with those of documents that are their own.
    """
    own: dict[int, set[int]] = {}
    for query, document in pairs:
        own.setdefault(query, set()).add(document)
    shares = []
    for query, places in own.items():
        scores = documents @ queries[query]
        others = scores.index_fill(0, torch.tensor(list(places)), float("-inf"))
        found = sum(
            int((~(others < scores[place] - ROUNDING)).sum() + (scores[list(places)] > scores[place]).sum()) < depth
            for place in places
        )
        shares.append(found / len(places))
    return 100 * sum(shares) / len(shares)
