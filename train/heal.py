"""Heals a network that loses heads, neurons or layers, so that its vectors fit an index that the whole one filled.

Parts are removed, the rest is fitted in closed form (`train.reconstruct`), and all of it is trained towards the whole.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.checkpoint import Checkpoint, require_embedding
from export.heads.subject import find_subject
from export.pruning.driver import prune
from export.texts import TokenizedText, batches, tokenize
from model.config import EncoderConfig
from model.encoder import Encoder
from train.commands import HealSettings
from train.data import read_material
from train.distillation import LONGEST, Distillation
from train.errors import RunError
from train.folder import load_checkpoint
from train.reconstruct import last_matched, reconstruct, require_fittable
from train.removal import order_by_reconstruction
from train.settings import RunSettings
from train.shape import Shape, apply_shape, choose_shape

CHOOSING_TEXTS = 500

Places = list[list[int]]
"""Heads as [layer, head]."""


class Heal(Distillation):
    """The recipe of `polyhead train heal`."""

    command = "heal"

    def __init__(self, settings: HealSettings, run: RunSettings) -> None:
        """On `--resume` the parts go that the checkpoint lacks, and nothing is fitted."""
        material = read_material(settings.texts, settings.held_out)
        subject = find_subject(settings.model, weights=settings.weights_from)
        require_embedding(subject.whole, "healing is judged")
        require_fittable(subject.whole.encoder.config)
        config = subject.whole.encoder.config
        removed, shape = _choose(subject.whole, subject.pruned, settings, material.learned, run)
        student = apply_shape(subject.whole.encoder, shape)
        if settings.fitting_texts and not run.resume:
            fit(student, subject.whole, material.learned[: settings.fitting_texts], shape.layers)
        super().__init__(
            student,
            subject.whole,
            material,
            settings.weights,
            run,
            described={**removed, "asked": _asked(settings), "fitting_texts": settings.fitting_texts},
            layers=last_matched(shape.layers, config.num_layers),
        )
        self.like = with_removed(subject.whole, _for_manifest(removed))


def fit(student: Encoder, whole: Checkpoint, texts: Sequence[str], layers: Sequence[int] | None = None) -> None:
    """The closed-form fit of a network without some parts; `layers` are those that stay."""
    tokens = tokenize(texts, whole.tokenizer, min(LONGEST, whole.max_sequence_length))
    reconstruct(student, whole.encoder, list(batches(tokens, 0)), layers)


def _asked(settings: HealSettings) -> dict[str, Any]:
    """The flags that choose the parts to remove, as JSON types; on `--resume` the checkpoint names these parts."""
    files = {name: path and path.name for name, path in (("heads", settings.heads), ("pairs", settings.pairs))}
    values = {name: getattr(settings, name) for name in ("remove", "lose", "faster", "cost_precision")}
    return {**values, **files, "only": list(settings.only)}


def with_removed(whole: Checkpoint, removed: Mapping[str, Any]) -> Checkpoint:
    """What surrounds a network that lost parts; `before` is what earlier training left out of the whole one."""
    return replace(whole, removed={**removed, **({"before": whole.removed} if whole.removed else {})})


def _for_manifest(removed: Mapping[str, Any]) -> dict[str, Any]:
    speed = {name: value for name, value in removed.get("speed", {}).items() if name != "microseconds"}
    parts = {"heads": "removed", "neurons": "removed_neurons", "layers": "removed_layers"}
    return {name: removed.get(key, []) for name, key in parts.items()} | ({"speed": speed} if speed else {})


def _choose(
    whole: Checkpoint, pruned: Places | None, settings: HealSettings, texts: Sequence[str], run: RunSettings
) -> tuple[dict[str, Any], Shape]:
    """What to remove with what it was chosen by, for the record, and what stays."""
    config = whole.encoder.config
    if run.resume:
        _, state = load_checkpoint(run.output)
        names = ("removed", "chosen_by", "removed_neurons", "removed_layers", "speed")
        removed = {name: state["recipe"][name] for name in names if name in state["recipe"]}
    elif settings.faster is not None and not pruned:
        tokens = tokens_to_choose_by(whole, texts)
        return choose_shape(whole.encoder, tokens, settings.faster, settings.only, settings.cost_precision)
    else:
        heads, chosen_by = _choose_heads(whole, pruned, settings, texts)
        removed = {"removed": heads, "chosen_by": chosen_by}
    return removed, Shape.read(removed, config)


def _choose_heads(
    whole: Checkpoint, pruned: Places | None, settings: HealSettings, texts: Sequence[str]
) -> tuple[Places, str]:
    """The heads to remove, and what they were chosen by."""
    config = whole.encoder.config
    asked = (settings.remove, settings.heads, settings.lose, settings.faster)
    if pruned and any(part is not None for part in asked):
        raise RunError("the artifact has lost heads already: heal it without asking for more, or name the whole")
    if pruned:
        return pruned, "artifact"
    if settings.heads is not None:
        return _read_heads(settings.heads, config), settings.heads.name
    if settings.lose is not None:
        record = prune(whole, lose=settings.lose, pairs=settings.pairs, with_curve=False).record
        if not record["removed"]:
            raise RunError(f"no head can go for {settings.lose:g} points: allow more, or give a share with --remove")
        return record["removed"], record["definition"]
    if settings.remove is None:
        raise RunError("no head is missing, and none was asked to be removed: say --remove SHARE or --faster TIMES")
    count = count_to_remove(settings.remove, config)
    order = order_by_reconstruction(whole.encoder, tokens_to_choose_by(whole, texts))
    return [list(config.head_place(head)) for head in order[:count]], "reconstruction"


def count_to_remove(share: float, config: EncoderConfig) -> int:
    """How many heads a share is; refuses one that is none."""
    count = round(share * sum(config.num_heads))
    if not count:
        raise RunError(f"--remove {share:g} of {sum(config.num_heads)} heads is none: give a larger share")
    return count


def tokens_to_choose_by(whole: Checkpoint, texts: Sequence[str]) -> list[TokenizedText]:
    """The first 500 texts."""
    return tokenize(texts[:CHOOSING_TEXTS], whole.tokenizer, min(LONGEST, whole.max_sequence_length))


def _read_heads(path: Path, config: EncoderConfig) -> Places:
    try:
        record = json.loads(path.read_bytes())
        places = [[int(layer), int(head)] for layer, head in record["removed"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path} has no list `removed` of [layer, head]: {error!r:.200}") from error
    if record.get("removed_layers") or any(record.get("removed_neurons") or ()):
        raise RunError(f"{path} removes neurons or layers too, and does not say which neurons: give --faster again")
    for layer, head in places:
        if not (0 <= layer < config.num_layers and 0 <= head < config.num_heads[layer]):
            raise RunError(
                f"{path} removes head {head} of layer {layer}: the network has {list(config.num_heads)} heads"
            )
    if not places:
        raise RunError(f"{path} removes no head")
    return [list(place) for place in dict.fromkeys(map(tuple, places))]
