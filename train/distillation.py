"""A student learns to give its teacher's vectors, from texts without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.checkpoint import Checkpoint
from model.encoder import Encoder
from train.data.batching import TokenBatch, tokenize_texts
from train.data.running_text import as_running_text
from train.data.substitution import ordinary_tokens, substitute
from train.data.text_files import DataFile, read_texts
from train.embedding import embed_ids, layer_outputs, run
from train.losses import cosine_loss, hidden_loss, similarity_loss
from train.parallel import ALONE, Processes
from train.relations import last_projections, relation_loss
from train.seeds import generator_of
from train.settings import RunSettings
from train.similarity import cosine_figures

LONGEST = 128  # tokens of a text; attention to more costs more than it teaches
MOST_HELD_OUT = 1000
HELD_OUT_SHARE = 0.02
SEED = 0  # of the texts that are held out; the same in every run


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """What counts how much in the loss, beside the cosine to the teacher's vectors.

    Attributes:
        similarity_weight: of the similarities within a batch.
        hidden_weight: of the hidden states at the start; it falls to 0 at the end.
        relation_weight: of what tokens are to each other in the last layer's queries, keys and values.
        substitute: share of the tokens replaced in every other text.
        running_text: share of the texts that are made into running text.
    """

    similarity_weight: float = 1.0
    hidden_weight: float = 0.2
    relation_weight: float = 0.0
    substitute: float = 0.0
    running_text: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """Texts to learn from, in an order drawn once, and texts to judge by, which share none with them.

    Attributes:
        learned: to learn from.
        held_out: to judge by.
        described: the files, for the record.
    """

    learned: Sequence[str]
    held_out: Sequence[str]
    described: Mapping[str, Any]


def read_material(paths: Sequence[Path], held_out: Path | None) -> Texts:
    """Reads the files; without `held_out` a part of the texts is for judging.

    Raises:
        DataError: a file cannot be used.
    """
    texts, files = read_texts(paths)
    texts = list(dict.fromkeys(texts))  # a text that comes twice would be on both sides
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(SEED)).tolist()
    shuffled = [texts[place] for place in order]
    if held_out is None:
        count = min(MOST_HELD_OUT, max(2, round(HELD_OUT_SHARE * len(texts))))
        described = {"texts": _listed(files), "held_out": f"{count} of the texts"}
        return Texts(learned=shuffled[count:], held_out=shuffled[:count], described=described)
    judged, judged_files = read_texts([held_out])
    judged = list(dict.fromkeys(judged))[:MOST_HELD_OUT]
    kept_apart = set(judged)
    described = {"texts": _listed(files), "held_out": _listed(judged_files)}
    return Texts(learned=[text for text in shuffled if text not in kept_apart], held_out=judged, described=described)


class Distillation:
    """A recipe: cosine to the teacher's vectors, similarities within a batch, hidden states, relations of tokens.

    Attributes: see `train.recipe.Recipe`.
    """

    command = "distil"
    score = "cosine_mean"
    rate_factors: Mapping[str, float] = {}
    processes: Processes = ALONE

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
        """Puts everything where the device is, and embeds the texts to judge by.

        Args:
            student: what is trained.
            teacher: what it learns from; its tokenizer reads the texts.
            material: the texts.
            weights: of the loss.
            settings: of the run.
            described: what was done before, for the record.
            layers: of the teacher, whose hidden states those of the student's layers are pulled towards, one a layer;
                empty where they are of another size.
        """
        self.like, self.weights, self.seed, self.layers = teacher, weights, settings.seed, layers
        self.device = torch.device(settings.device)
        self.encoder = student.requires_grad_(True).to(self.device)
        self.module: nn.Module = self.encoder
        self.teacher = teacher.encoder.to(self.device)
        longest = min(LONGEST, teacher.max_sequence_length)
        learned = as_running_text(material.learned, weights.running_text, settings.seed)
        self.tokens = tokenize_texts(learned, teacher.tokenizer, longest)
        self.lengths: Sequence[int] = self.tokens.lengths
        self.ordinary = ordinary_tokens(teacher.tokenizer)
        self.held_out = tokenize_texts(material.held_out, teacher.tokenizer, longest)
        self.expected = embed_ids(self.teacher, self.held_out, self.device)
        self.described: Mapping[str, Any] = {**material.described, **described, "distillation": asdict(weights)}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of the distillation loss."""
        loss = self.loss(self.batch(places, step), share)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def batch(self, places: Sequence[int], step: int) -> TokenBatch:
        """Some texts, with tokens replaced where that was asked for."""
        batch = self.tokens.batch(places)
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
            lengths = batch.lengths.tolist()
            relations = relation_loss(students, teachers, lengths, self.processes.total)
            loss = loss + self.weights.relation_weight * relations
        return loss

    def evaluate(self) -> dict[str, float]:
        """Cosines to the teacher's vectors, on texts that are not trained on."""
        return cosine_figures(embed_ids(self.network(), self.held_out, self.device), self.expected)

    def network(self) -> Encoder:
        """The student as it stands."""
        return self.encoder

    def findings(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def _listed(files: Sequence[DataFile]) -> list[dict[str, Any]]:
    return [file._asdict() for file in files]
