"""Heals a network that loses heads: what is left learns to give the whole network's vectors again.

Heads are removed, the rest is fitted in closed form (`train.reconstruct`), and then all of it is trained towards the
whole network. The aim is an encoder whose vectors fit an index that the whole network filled.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint import Checkpoint, require_embedding
from export.heads.subject import find_subject
from export.pruning.driver import PruningRequest, prune
from export.pruning.removal import apply_removal
from export.texts import batches, tokenize
from model.config import EncoderConfig
from model.encoder import Encoder
from train.distillation import LONGEST, Distillation, Lesson, read_material
from train.errors import RunError
from train.folder import load_checkpoint
from train.reconstruct import order_by_reconstruction, reconstruct, require_fittable
from train.settings import RunSettings

CHOOSING_TEXTS = 500

Places = list[list[int]]
"""Heads as [layer, head]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealSettings(Lesson):
    """What is removed, and what the rest learns from.

    Attributes:
        remove: share of the heads, chosen by reconstruction; None where the artifact has lost some already.
        lose: points of quality that the removal may cost before anything is healed, as `export --prune-to-quality`; or
            None.
        pairs: rated pairs that heads are then chosen and judged by; None for texts that ship with the project.
        heads: JSON file whose `removed` lists the heads, as [layer, head], such as the record of `gates`; or None.
        fitting_texts: texts of the closed-form fit; 0 leaves it out.
    """

    remove: float | None = None
    heads: Path | None = None
    lose: float | None = None
    pairs: Path | None = None
    fitting_texts: int = 4000


class Heal(Distillation):
    """The recipe of `polyhead train heal`."""

    command = "heal"

    def __init__(self, settings: HealSettings, run: RunSettings) -> None:
        """Reads everything, removes heads and fits the rest; on `--resume` the checkpoint's heads are removed.

        Raises:
            SourceError: the model or a file cannot be used.
            RunError: there is nothing to remove, or nothing to go on from.
        """
        material = read_material(settings.texts, settings.held_out)
        subject = find_subject(settings.model)
        require_embedding(subject.whole, "healing is judged")
        require_fittable(subject.whole.encoder.config)
        removed, chosen_by = _choose(subject.whole, subject.pruned, settings, material.learned, run)
        student = apply_removal(subject.whole.encoder, removed)
        if settings.fitting_texts and not run.resume:
            fit(student, subject.whole, material.learned[: settings.fitting_texts])
        super().__init__(
            student,
            subject.whole,
            material,
            settings.weights,
            run,
            described={"removed": removed, "chosen_by": chosen_by, "fitting_texts": settings.fitting_texts},
            layers=range(student.config.num_layers),
        )


def fit(student: Encoder, whole: Checkpoint, texts: Sequence[str]) -> None:
    """The closed-form fit of a network without some heads."""
    tokens = tokenize(texts, whole.tokenizer, min(LONGEST, whole.max_sequence_length))
    reconstruct(student, whole.encoder, list(batches(tokens, 0)))


def _choose(
    whole: Checkpoint, pruned: Places | None, settings: HealSettings, texts: Sequence[str], run: RunSettings
) -> tuple[Places, str]:
    """The heads to remove, and what they were chosen by."""
    if run.resume:
        _, state = load_checkpoint(run.output)
        return state["recipe"]["removed"], state["recipe"]["chosen_by"]
    config = whole.encoder.config
    asked = (settings.remove, settings.heads, settings.lose)
    if pruned and any(part is not None for part in asked):
        raise RunError("the artifact has lost heads already: heal it without asking for more, or name the whole")
    if pruned:
        return pruned, "artifact"
    if settings.heads is not None:
        return _read_heads(settings.heads, config), settings.heads.name
    if settings.lose is not None:
        return _choose_by_quality(whole, settings.lose, settings.pairs)
    if settings.remove is None:
        raise RunError("no head is missing, and none was asked to be removed: say --remove SHARE")
    count = round(settings.remove * sum(config.num_heads))
    if not count:
        raise RunError(f"--remove {settings.remove:g} of {sum(config.num_heads)} heads is none: give a larger share")
    tokens = tokenize(texts[:CHOOSING_TEXTS], whole.tokenizer, min(LONGEST, whole.max_sequence_length))
    order = order_by_reconstruction(whole.encoder, tokens)
    return [list(config.head_place(head)) for head in order[:count]], "reconstruction"


def _choose_by_quality(whole: Checkpoint, lose: float, pairs: Path | None) -> tuple[Places, str]:
    """As many heads as cost at most `lose` points, chosen as an export chooses them."""
    record = prune(whole, PruningRequest(lose=lose, pairs=pairs, with_curve=False)).record
    if not record["removed"]:
        raise RunError(f"no head can go for {lose:g} points: allow more, or give a share with --remove")
    return record["removed"], record["definition"]


def _read_heads(path: Path, config: EncoderConfig) -> Places:
    try:
        places = [[int(layer), int(head)] for layer, head in json.loads(path.read_bytes())["removed"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path} has no list `removed` of [layer, head]: {error!r:.200}") from error
    for layer, head in places:
        if not (0 <= layer < config.num_layers and 0 <= head < config.num_heads[layer]):
            raise RunError(
                f"{path} removes head {head} of layer {layer}: the network has {list(config.num_heads)} heads"
            )
    if not places:
        raise RunError(f"{path} removes no head")
    return places
