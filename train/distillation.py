"""A student learns to give its teacher's vectors, from texts without labels.

Relations between tokens are of the last layer's queries, keys and values (MiniLMv2, Wang et al. 2021, arXiv
2012.15828): distributions over the tokens of a text whatever the size of a head, so the student's heads may differ.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, normalize
from torch.nn.utils.rnn import pad_sequence

from export.checkpoint import Checkpoint
from model.encoder import Encoder
from model.packing import real_tokens
from train.batching import TokenBatch, as_running_text, ordinary_tokens, substitute, tokenize_texts
from train.commands import Weights
from train.data import Texts
from train.embedding import cosine_figures, embed_ids, encoder_layers, layer_outputs, run
from train.loop import Recipe
from train.parallel import ALONE, generator_of
from train.settings import RunSettings

LONGEST = 128  # tokens of a text; attention to more costs more than it teaches
PROJECTIONS = ("query", "key", "value")
MOST_RELATION_HEADS = 48  # as MiniLMv2 has


class Distillation(Recipe):
    """A recipe: cosine to the teacher's vectors, similarities within a batch, hidden states, relations of tokens."""

    command = "distil"
    score = "cosine_mean"

    def __init__(
        self,
        student: Encoder,
        teacher: Checkpoint,
        material: Texts,
        weights: Weights,
        settings: RunSettings,
        *,
        described: Mapping[str, Any],
        layers: Sequence[int],
    ) -> None:
        """Puts everything on the device, and embeds the texts to judge by.

        `described` is for the record. `layers` has for each of the student's layers the teacher's whose hidden states
        it learns; it is empty if their sizes differ.
        """
        self.like, self.weights, self.seed, self.layers = teacher, weights, settings.seed, layers
        self.device = torch.device(settings.device)
        self.encoder = student.requires_grad_(True).to(self.device)
        self.module = self.encoder
        self.teacher = teacher.encoder.to(self.device)
        longest = min(LONGEST, teacher.max_sequence_length)
        learned = as_running_text(material.learned, weights.running_text, settings.seed)
        self.tokens = tokenize_texts(learned, teacher.tokenizer, longest)
        self.lengths = self.tokens.lengths
        self.ordinary = ordinary_tokens(teacher.tokenizer)
        self.held_out = tokenize_texts(material.held_out, teacher.tokenizer, longest)
        self.expected = embed_ids(self.teacher, self.held_out, self.device)
        self.described = {**material.described, **described, "distillation": asdict(weights)}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the distillation loss."""
        loss = self.loss(self.batch(places, step), share)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def batch(self, places: Sequence[int], step: int) -> TokenBatch:
        """Some texts, with tokens replaced where that was asked for."""
        batch = self.tokens.even_batch(places)
        if self.weights.substitute:
            batch = substitute(batch, self.ordinary, self.weights.substitute, generator_of(self.seed, step))
        return batch.to(self.device)

    def loss(self, batch: TokenBatch, share: float, head_gates: Tensor | None = None) -> Tensor:
        """How far the student is from the teacher on a batch; `share` of the run is over."""
        texts = len(batch.lengths)
        rows = self.processes.rows(texts)
        batch, head_gates = batch.rows(rows), None if head_gates is None else head_gates[rows]
        with layer_outputs(self.teacher) as expected, last_projections(self.teacher) as teachers, torch.no_grad():
            target = run(self.teacher, batch).float()
        with layer_outputs(self.encoder) as hidden, last_projections(self.encoder) as students:
            found = run(self.encoder, batch, head_gates).float()
        found, target = (self.processes.gather(vectors, texts) for vectors in (found, target))
        loss = cosine_loss(found, target) + self.weights.similarity_weight * similarity_loss(found, target)
        if self.weights.hidden_weight and len(self.layers):
            matched = [expected[layer] for layer in self.layers]
            loss = loss + self.weights.hidden_weight * (1 - share) * hidden_loss(hidden, matched, self.processes.total)
        if self.weights.relation_weight and students and teachers:
            relations = relation_loss(students, teachers, batch.lengths.tolist(), self.processes.total)
            loss = loss + self.weights.relation_weight * relations
        return loss

    def evaluate(self) -> dict[str, float]:
        """Cosines to the teacher's vectors, on texts that are not trained on."""
        return cosine_figures(embed_ids(self.network(), self.held_out, self.device), self.expected)


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over texts of 1 - cos, [B, D] each."""
    return (1 - (normalize(student, dim=-1) * normalize(teacher, dim=-1)).sum(dim=-1)).mean()


def similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the cosines between the texts of a batch, [B, D] each."""
    own, whole = normalize(student, dim=-1), normalize(teacher, dim=-1)
    return ((own @ own.T - whole @ whole.T) ** 2).mean()


def hidden_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], total: Callable[[Tensor], Tensor] = ALONE.total
) -> Tensor:
    """Squared error of hidden states [T, D] over their variance across tokens, mean over layers.

    0 is equality, 1 what the mean of all tokens would reach, in every layer alike. `total` sums over processes that
    hold some of the tokens each.
    """
    shares = []
    for own, whole in zip(student, teacher, strict=True):
        tokens = total(whole.new_tensor(float(len(whole))))
        mean = total(whole.sum(dim=0)) / tokens
        variance = total((whole - mean).square().sum()).clamp(min=1e-12)
        shares.append(total((own - whole).square().sum()) / variance)
    return torch.stack(shares).mean()


def relation_loss(
    student: dict[str, Tensor],
    teacher: dict[str, Tensor],
    lengths: Sequence[int],
    total: Callable[[Tensor], Tensor] = ALONE.total,
) -> Tensor:
    """Kullback-Leibler divergence of the student's relations from the teacher's, mean over tokens, heads and kinds.

    Both are queries, keys and values [T, ...], one text behind the other, of any width; `lengths` add up to T. `total`
    is as of `hidden_loss`.
    """
    losses = []
    for name in PROJECTIONS:
        own, whole = student[name].float(), teacher[name].float()
        heads = relation_heads(own.shape[1], whole.shape[1])
        real = real_tokens(torch.tensor(list(lengths), device=own.device), max(lengths))[:, None, None]  # [B, 1, 1, S]
        found, expected = (log_relations(rows, lengths, heads, real) for rows in (own, whole))
        divergence = kl_div(found, expected, reduction="none", log_target=True)  # [B, R, S, S]
        of_tokens = divergence[(real & real.transpose(2, 3)).expand_as(divergence)]  # query and key are a text's
        tokens = total(whole.new_tensor(float(len(whole))))
        losses.append(total(of_tokens.sum()) / (tokens * heads))
    return torch.stack(losses).mean()


def relation_heads(own: int, whole: int) -> int:
    """R: the most heads, up to 48, that both widths can be cut into."""
    common = math.gcd(own, whole)
    return max(heads for heads in range(1, min(common, MOST_RELATION_HEADS) + 1) if common % heads == 0)


def log_relations(projected: Tensor, lengths: Sequence[int], heads: int, real: Tensor) -> Tensor:
    """Logarithms [B, R, S, S] of each token's distribution over the tokens of its text; padding has no weight.

    `projected` is [T, R*W], `heads` R, and `real`, where a text has a token, bool [B, 1, 1, S].
    """
    rows = pad_sequence(list(torch.split(projected, list(lengths))), batch_first=True)  # [B, S, R*W]
    cut = rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)  # [B, R, S, W]
    scores = cut @ cut.transpose(2, 3) / math.sqrt(cut.shape[-1])
    return scores.masked_fill(~real, torch.finfo(scores.dtype).min).log_softmax(dim=-1)


@contextmanager
def last_projections(encoder: Encoder) -> Iterator[dict[str, Tensor]]:
    """While this holds, the dictionary has the last run's queries, keys and values [T, ...].

    They are of the last layer with heads; without one the dictionary stays empty.
    """
    found: dict[str, Tensor] = {}
    layers = [layer for layer in encoder_layers(encoder) if layer.attention.num_heads]
    with ExitStack() as hooks:
        for name in PROJECTIONS if layers else ():
            product = getattr(layers[-1].attention, name)
            hooks.enter_context(product.register_forward_hook(lambda _, __, rows, of=name: found.update({of: rows})))
        yield found
