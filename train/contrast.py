"""Trains an embedder on pairs that belong together, or triples with a text that does not."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from export.pruning.removal import remove_heads
from model.artifact import Defaults
from train.batching import tokenize_texts
from train.commands import ContrastSettings
from train.data import read_parts
from train.embedding import embed_ids, recall, run
from train.errors import RunError
from train.folder import compared_by_cosines
from train.loop import Recipe
from train.parallel import ALONE, Processes, random_states, set_random_states
from train.settings import RunSettings

LONGEST = 128
MOST_NEGATIVES = 8  # of a row
DEPTHS = (1, 10)  # of recall
PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}  # as sentence-transformers looks for


Embed = Callable[[Sequence[int]], Tensor]
"""Embeds some examples of a batch, by their places in it, [n, D], with gradients."""


class Contrast(Recipe):
    """The recipe of `polyhead train contrast`."""

    command = "contrast"
    score = "recall_at_10"

    def __init__(self, settings: ContrastSettings, run_settings: RunSettings) -> None:
        negatives = tuple(f"negative_{index}" for index in range(1, MOST_NEGATIVES + 1))
        rows = read_parts(settings.rows, settings.held_out, ("anchor", "positive"), optional=negatives)
        self.like = compared_by_cosines(find_subject(settings.model).checkpoint)
        require_embedding(self.like, "pairs are compared")
        self.settings = settings
        self.device = torch.device(run_settings.device)
        self.encoder = remove_heads(self.like.encoder, ()).requires_grad_(True).to(self.device)
        self.module = self.encoder
        if outside := [size for size in settings.dimensions if size > self.encoder.config.embedding_size]:
            raise RunError(f"vectors have {self.encoder.config.embedding_size} dimensions: none to cut at {outside[0]}")
        longest = min(LONGEST, self.like.max_sequence_length)
        prompts = {side: _prompt(self.like.defaults, names) for side, names in PROMPTS.items()}
        self.rows = [_behind(prompts, row.fields) for row in rows.learned]
        self.positives: dict[str, set[str]] = {}
        for anchor, positive, *_ in self.rows:
            self.positives.setdefault(anchor, set()).add(positive)
        texts = list(dict.fromkeys(text for fields in self.rows for text in fields))
        self.numbers = {text: number for number, text in enumerate(texts)}
        self.tokens = tokenize_texts(texts, self.like.tokenizer, longest)
        each = self.tokens.lengths
        self.lengths = [sum(each[self.numbers[text]] for text in fields) for fields in self.rows]
        judged = [_behind(prompts, row.fields) for row in rows.held_out]
        sides = [list(dict.fromkeys(row[side] for row in judged)) for side in (0, 1)]  # texts that come twice are one
        anchors, positives = ({text: place for place, text in enumerate(side)} for side in sides)
        self.pairs = [(anchors[anchor], positives[positive]) for anchor, positive, *_ in judged]
        self.queries, self.documents = (tokenize_texts(side, self.like.tokenizer, longest) for side in sides)
        if len(positives) <= DEPTHS[-1]:  # all of which are among the ten nearest
            self.score = f"recall_at_{DEPTHS[0]}"
        if run_settings.batch_size == 1 and not any(len(row) > 2 for row in self.rows):
            raise RunError("--batch-size 1 has no negatives: take 2 or more, or give rows with negatives")
        chosen = {"scale": settings.scale, "dimensions": list(settings.dimensions), "prompts": prompts}
        self.described = {**rows.described, "contrast": chosen}

    def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
        """The gradient of InfoNCE over a batch of rows."""
        del step, share
        rows = [self.rows[place] for place in places]
        anchors = [fields[0] for fields in rows]
        candidates = [fields[1] for fields in rows] + [text for fields in rows for text in fields[2:]]
        texts = [self.numbers[text] for text in (*anchors, *candidates)]
        known = known_positives(anchors, candidates, self.positives).to(self.device)

        def loss_of(embeddings: Tensor) -> Tensor:
            left, right = embeddings[: len(anchors)].float(), embeddings[len(anchors) :].float()
            return info_nce(left, right, known, scale=self.settings.scale, dimensions=self.settings.dimensions)

        def embed(part: Sequence[int]) -> Tensor:
            return run(self.encoder, self.tokens.batch([texts[index] for index in part]).to(self.device))

        return backward_in_chunks(embed, len(texts), self.settings.chunk or len(texts), loss_of, self.processes)

    def evaluate(self) -> dict[str, float]:
        """Percent of the held-out anchors' positives that are the nearest, and among the ten nearest."""
        queries, documents = (embed_ids(self.encoder, side, self.device) for side in (self.queries, self.documents))
        return {f"recall_at_{depth}": recall(queries, documents, self.pairs, depth=depth) for depth in DEPTHS}


def _prompt(defaults: Defaults, names: Sequence[str]) -> str:
    """The model's prompt for queries or documents as the service chooses it: by name, or the default one, or none."""
    name = next((name for name in names if name in defaults.prompts), defaults.default_prompt_name)
    return "" if name is None else defaults.prompts[name]


def _behind(prompts: Mapping[str, str], fields: Sequence[str]) -> tuple[str, ...]:
    return (prompts["query"] + fields[0], *(prompts["document"] + text for text in fields[1:]))


def info_nce(
    anchors: Tensor, candidates: Tensor, known: Tensor, *, scale: float, dimensions: Sequence[int] = ()
) -> Tensor:
    """Mean over anchors of -log softmax of the own candidate's cosine among all (van den Oord et al. 2018).

    Anchors are [B, D] and candidates [B + N, D], of which the first B are the anchors' own; `known`, bool [B, B + N],
    are further positives of an anchor, and so no negatives. `scale` is one over the temperature. With sizes to cut
    vectors at it is the mean of a loss for each (Matryoshka, Kusupati et al. 2022).
    """
    own = torch.arange(len(anchors), device=anchors.device)
    losses = []
    for size in dimensions or [anchors.shape[1]]:
        left, right = normalize(anchors[:, :size], dim=-1), normalize(candidates[:, :size], dim=-1)
        scores = scale * left @ right.T  # [B, B + N]
        losses.append(cross_entropy(scores.masked_fill(known, float("-inf")), own))
    return torch.stack(losses).mean()


def known_positives(anchors: Sequence[str], candidates: Sequence[str], positives: Mapping[str, set[str]]) -> Tensor:
    """Candidates that are no negatives of an anchor, bool [anchors, candidates]: further positives of its text.

    Candidates are the anchors' own, in order, and then others; `positives` are those of each anchor in all rows.
    """
    own = [positives.get(anchor, set()) | {text} for anchor, text in zip(anchors, candidates, strict=False)]
    known = torch.tensor([[candidate in texts for candidate in candidates] for texts in own])
    return known & ~torch.eye(len(anchors), len(candidates), dtype=torch.bool)


def backward_in_chunks(
    embed: Embed, count: int, chunk: int, loss_of: Callable[[Tensor], Tensor], processes: Processes = ALONE
) -> float:
    """Adds the gradient of a loss on all embeddings [count, D], a chunk with its graph at a time; returns the loss.

    GradCache (Gao et al. 2021, arXiv 2101.06983): embed all without a graph, differentiate the loss by the embeddings,
    then embed each chunk again with its graph. What is drawn in training is drawn alike both times. Each process embeds
    its own part.
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
