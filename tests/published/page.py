"""Writes docs/which-model.md from the table: `python -m tests.published.page`."""

from functools import cache
from pathlib import Path

import torch

from export.checkpoint import find_family
from export.late_interaction import STANFORD
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.published.build import Published, table

PAGE = Path(__file__).parents[2] / "docs" / "which-model.md"
HEADINGS = {
    "embedding": "Embeddings",
    "reranker": "Rerankers",
    "classifier": "Classifiers",
    "sparse": "Weights of words",
    "multi_vector": "A vector a token",
    "tokens": "Labels of tokens",
}
INTRODUCTION = """\
# Which model

Models that people download, and what Polyhead does with each. The page is written from `tests/published/models.toml`,
which holds what their published folders say; `python -m tests.published.page` writes it.

- **result**: *equal* means that a small network with random weights, in the same published layout (settings, names of
  tensors, other files), was exported and equals sentence-transformers 6.2 or transformers 5.23 within 2e-4 of the
  largest value: token ids, every layer's hidden state and attention, and the final answer. *Exported* means that
  no library computes the original; the note says what it was compared with. `pytest -m exhaustive tests/published`
  runs all of them. Every export compares the published weights on your machine
  ([Verification](models.md#verification)).
- **weights** are what the artifact's numbers take in memory in fp32 / fp16 / int8, in megabytes. In int8 the token
  embeddings stay float32. A process needs about 150 MB besides, and memory for the texts of a batch.
- **tokens** is the longest text that the files state.
- The command is `python -m export ID --output artifacts/NAME`, with the options of the row. Prompts that the files
  hold are applied by name (`prompt_name`, `role`) and listed by `GET /info`; others, in the last column, are the
  caller's to write.
"""


def kind_of(row: Published) -> str:
    """Under which heading a row stands."""
    modules, architecture = str(row["modules"]), row["architecture"]
    if "--task sparse" in " ".join(row["options"] or ()) or "Splade" in modules or row["router"]:
        return "sparse"
    if architecture == STANFORD or "PyLate" in modules:
        return "multi_vector"
    if ("CausalLM" in architecture and not row["modules"]) or "scores" in modules:
        return "reranker"
    if architecture.endswith("ForTokenClassification"):
        return "tokens"
    if architecture.endswith("ForSequenceClassification"):
        return "reranker" if len(row["labels"]) == 1 else "classifier"
    return "embedding"


def network(row: Published) -> EncoderConfig | None:
    """The network at its real size; None if it is not read."""
    config = row.config
    family = find_family(config)
    if family is None or row["result"] == "refused":
        return None
    said = {name: value for name, value in config.items() if name not in (row["left_out"] or ())}
    return family.read_config(family.settle(said, compared=True), "mean")


@cache
def parameters(config: EncoderConfig) -> tuple[int, int]:
    """How many there are, and how many of them outside the layers; nothing of their size is made."""
    with torch.device("meta"):
        sizes = {name: parameter.numel() for name, parameter in Encoder(config).named_parameters()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if not name.startswith("layers."))


def dimensions(row: Published) -> str:
    """Of a vector, or what there is instead."""
    kind = kind_of(row)
    if kind in ("classifier", "tokens"):
        return f"{row['real_labels'] or len(row['labels'])} labels"
    if kind == "reranker":
        return "1 score"
    if kind == "sparse":
        return "a weight a word"
    dense = [int(module.split()[1]) for module in row["modules"] or () if "Dense" in module]
    return str(row["dimensions"] or row["inline_dense"] or (dense[-1] if dense else row["shape"][0]))


def megabytes(row: Published) -> str:
    """Of the weights, by precision."""
    config = network(row)
    if config is None:
        return ""
    whole, tables = parameters(config)
    sizes = 4 * whole, 2 * whole, whole + 3 * tables
    return " / ".join(f"{size / 1e6:,.0f}" for size in sizes)


def line(row: Published) -> str:
    """One row of the page."""
    result = {"equal": "equal", None: "equal", "exported": "exported"}.get(row["result"], "refused")
    notes = [row["why"], row["card"]]
    if row["prompts"]:
        notes.append(f"prompts {', '.join(f'`{name}`' for name in row['prompts'])}")
    options = f" `{' '.join(row['options'])}`" if row["options"] else ""
    cells = (f"`{row.id}`{options}", row["languages"], dimensions(row), f"{row['tokens']:,}", megabytes(row), result)
    return f"| {' | '.join(cells)} | {'; '.join(note for note in notes if note)} |"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for kind, heading in HEADINGS.items():
        rows = [line(row) for row in table() if kind_of(row) == kind]
        head = "| id and options | languages | dimensions | tokens | weights | result | what it asks for |\n"
        parts.append(f"\n## {heading}\n\n{head}|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
