"""Each training command: its flags, which are the fields of its settings, its help, which is its docstring, its run.

torch takes seconds to import: only a command that runs imports it, not --help or a wrong command line.
"""

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from export.command import count, not_negative, number, positive, share, whole
from train.errors import DataError, RunError
from train.settings import KINDS, CostPrecision, Kind, RunSettings, flag, model_flag, settings_of

if TYPE_CHECKING:
    from train.loop import Recipe


class Command(ABC):
    """What `polyhead train` does on what the fields say."""

    __slots__ = ()
    defaults: ClassVar[Mapping[str, Any]] = {}  # of flags of the run, where the command has its own
    of_run: ClassVar[tuple[str, ...]] = ()  # fields of `RunSettings` that have flags; every one of a `Training`

    @classmethod
    @abstractmethod
    def run(cls, options: argparse.Namespace) -> None:
        """Does all of it."""


class Training(Command):
    """One run of the loop, which writes a network."""

    __slots__ = ()

    @abstractmethod
    def recipe(self, run: RunSettings) -> "Recipe":
        """Reads everything that the loop trains on.

        Raises:
            SourceError, UnsupportedModel: the model cannot be used.
            DataError, RunError: the data cannot be, or what the flags ask for.
        """

    @classmethod
    def run(cls, options: argparse.Namespace) -> None:
        """Trains, and says how good the best network is and how it is exported."""
        from train.folder import require_folder
        from train.loop import train
        from train.parallel import joined

        run, settings = settings_of(RunSettings, options), settings_of(cls, options)
        with joined(run.device) as processes:
            if processes.is_first:  # before anything is read
                require_folder(run.output, is_resumed=run.resume)
            recipe = settings.recipe(run)
            progress = train(recipe, run, processes)
        if not processes.is_first:
            return
        sys.stderr.write(
            f"wrote {run.output}: {recipe.score} {progress.best:.4f} at step {progress.best_step}\n"
            f"export it: polyhead export {run.output} --output artifacts/{run.output.name}\n"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """How the loss and the texts of a lesson are made, besides the cosine to the teacher's vectors."""

    similarity_weight: float = flag("of similarities in a batch (default: %(default)g)", 1.0, type=not_negative)
    # It falls to 0 at the end.
    hidden_weight: float = flag("of hidden states at the start (default: %(default)g)", 0.2, type=not_negative)
    relation_weight: float = flag(
        "of relations between tokens in the last layer (MiniLMv2; default: 0)", 0.0, type=not_negative
    )
    substitute: float = flag("share of tokens replaced in every other text (default: 0)", 0.0, type=share)
    running_text: float = flag(
        "share of texts that get a full stop, half of them behind others (default: 0)", 0.0, type=share, metavar="SHARE"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """Who is learned from, on which texts."""

    model: str | None = model_flag("folder or hub id")
    texts: tuple[Path, ...] = flag("texts to learn from, one a line", metavar="FILE")
    held_out: Path | None = flag("texts to judge by (default: 2 %% of the texts)", None, metavar="FILE")
    weights: Weights = field(default_factory=Weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class HealSettings(Lesson, Training):
    """Heal a network that loses heads, neurons or layers.

    What is left learns to give the whole network's vectors again, from texts without labels.

    Example:
      polyhead train heal --remove 0.45 --texts texts.txt --output healed
      polyhead train heal --faster 1.5 --texts texts.txt --output healed
      polyhead export healed --output artifacts/healed
    """

    defaults: ClassVar = {"learning_rate": 6e-5, "embedding_rate": 0.3}
    model: str | None = model_flag("artifact, folder or Hugging Face id")
    remove: float | None = flag(
        "share of the heads to remove first", None, is_alternative=True, type=share, metavar="SHARE"
    )
    heads: Path | None = flag(
        "heads to remove first: a record of `gates`, or {removed: [[layer, head]]}",
        None,
        is_alternative=True,
        metavar="JSON",
    )
    lose: float | None = flag(
        "remove as many heads as cost at most POINTS before healing, as `polyhead export` does",
        None,
        name="--prune-to-quality",
        is_alternative=True,
        type=positive,
        metavar="POINTS",
    )
    faster: float | None = flag(
        "remove heads, neurons and layers until ONNX Runtime is TIMES as fast on this machine",
        None,
        is_alternative=True,
        type=number(float, lambda value: value > 1, "a number above 1"),
        metavar="TIMES",
    )
    only: tuple[Kind, ...] = flag("what --faster removes: heads, neurons, layers", KINDS, metavar="KIND")
    cost_precision: CostPrecision = flag("of the graphs that --faster times (default: fp32)", "fp32")
    pairs: Path | None = flag("rated pairs for --prune-to-quality", None, metavar="CSV")
    weights_from: str | None = flag(
        "weights of an artifact that was made from a folder", None, name="--weights", metavar="MODEL"
    )
    fitting_texts: int = flag("texts of the closed-form fit (default: 4000)", 4000, type=whole, metavar="N")

    def recipe(self, run: RunSettings) -> "Recipe":
        """Reads everything, removes parts and fits the rest."""
        from train.heal import Heal

        if self.pairs and self.lose is None:
            raise RunError("--pairs is for --prune-to-quality")
        if self.faster is None and (self.only, self.cost_precision) != (KINDS, "fp32"):
            raise RunError("--only and --cost-precision are for --faster")
        return Heal(self, run)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSettings(Lesson, Training):
    """Learn which heads to keep, and remove the others.

    Every head has a gate that learns to be open or closed while the network learns to do without.

    Example:
      polyhead train gates --remove 0.45 --texts texts.txt --output gated
      polyhead export gated --output artifacts/gated
    """

    remove: float = flag("share of the heads that goes", type=share, metavar="SHARE")
    gate_rate: float = flag("factor on the learning rate for gates (default: %(default)g)", 100.0, type=positive)

    def recipe(self, run: RunSettings) -> "Recipe":
        """Reads everything, and puts a gate on every head."""
        from train.gates import Gates

        return Gates(self, run)


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilSettings(Lesson, Training):
    """Make a network of another shape that gives its teacher's vectors.

    The student begins with the teacher's weights that fit it, and learns from texts without labels.

    Example:
      polyhead train distil --layers 3 --texts texts.txt --output small
      polyhead train distil --student student.json --texts texts.txt --output other     {"num_heads": [4, 4], "d_k": 16}
    """

    model: str | None = model_flag("the teacher: artifact, folder or hub id")
    student: Path | None = flag(
        "object with the fields of EncoderConfig that differ from the teacher's", None, metavar="JSON"
    )
    num_layers: int | None = flag("layers of the student", None, name="--layers", type=count, metavar="L")
    num_heads: int | None = flag("heads of each layer", None, name="--heads", type=count, metavar="H")
    d_k: int | None = flag("size of a query or key head", None, type=count, metavar="K")
    d_v: int | None = flag("size of a value head", None, type=count, metavar="V")
    intermediate_size: int | None = flag("width of the feed-forward layers", None, type=count, metavar="N")
    from_nothing: bool = flag("begin with random weights, not with the teacher's", default=False)

    def recipe(self, run: RunSettings) -> "Recipe":
        """Reads everything, and builds the student."""
        from train.distil import Distil

        return Distil(self, run)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastSettings(Training):
    """Train an embedder on pairs of texts that belong together.

    The other texts of a batch are the negatives, besides those that a row gives.

    Example:
      polyhead train contrast --pairs pairs.tsv --batch-size 256 --chunk 32 --dimensions 384 128 64 --output mine
      polyhead export mine --output artifacts/mine

    A row of pairs.tsv or pairs.csv is anchor, positive, and any negatives; of pairs.jsonl an object of these names.
    """

    defaults: ClassVar = {"learning_rate": 5e-5}
    model: str | None = model_flag("folder or hub id to begin with")
    rows: Path = flag(".csv, .tsv or .jsonl to learn from", name="--pairs", metavar="FILE")
    held_out: Path | None = flag("pairs to judge by (default: 5 %% of the pairs)", None, metavar="FILE")
    scale: float = flag("factor on cosines (default: %(default)g)", 20.0, type=positive)
    chunk: int = flag("texts in memory at a time, for large batches (default: all)", 0, type=whole, metavar="N")
    dimensions: tuple[int, ...] = flag("sizes at which vectors may be cut", (), type=count, metavar="D")

    def recipe(self, run: RunSettings) -> "Recipe":
        """Reads everything."""
        from train.contrast import Contrast

        return Contrast(self, run)


Level = Literal["text", "tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifySettings(Training):
    """Train a classifier of texts, of pairs of texts, or of words.

    Targets are names of labels or, with --scores, numbers. With --pairs and --scores it makes a reranker.

    Example:
      polyhead train classify --rows rated.csv --pairs --scores --output reranker     text, text, score
      polyhead train classify --rows labelled.csv --output classifier                 text, label
      polyhead train classify --rows treebank.conllu --level tokens --output tagger    words and their tags
      polyhead export reranker --output artifacts/reranker
    """

    defaults: ClassVar = {"learning_rate": 5e-5}
    model: str | None = model_flag("folder or hub id to begin with")
    rows: Path = flag(".csv, .tsv or .jsonl to learn from", metavar="FILE")
    held_out: Path | None = flag("rows to judge by (default: 5 %% of the rows)", None, metavar="FILE")
    pairs: bool = flag("rows hold two texts", default=False)
    level: Level = flag(
        "tokens: rows hold words and a label for each, with spaces between; .conllu, too (default: text)", "text"
    )
    scores: bool = flag("targets are numbers, not names of labels", default=False)

    def recipe(self, run: RunSettings) -> "Recipe":
        """Reads everything, and adds layers for the labels."""
        from train.classify import Classify, LabelTokens

        if self.level == "tokens" and (self.pairs or self.scores):
            raise DataError("--level tokens learns a label a word: leave --pairs and --scores out")
        return LabelTokens(self, run) if self.level == "tokens" else Classify(self, run)


COMMANDS: Mapping[str, type[Training]] = {
    "heal": HealSettings,
    "gates": GateSettings,
    "distil": DistilSettings,
    "contrast": ContrastSettings,
    "classify": ClassifySettings,
}
