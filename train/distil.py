"""Makes a network of another shape that gives its teacher's vectors: fewer layers or heads, other sizes of heads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from export.sources import read_json
from model.config import EncoderConfig
from model.config_parts import ConfigError
from model.encoder import Encoder
from model.initialise import initialise
from train.commands import DistilSettings
from train.data import read_material
from train.distillation import Distillation
from train.errors import RunError
from train.folder import compared_by_cosines
from train.settings import RunSettings

PER_LAYER = ("num_heads", "num_key_value_heads", "query_groups", "kept_heads", "value_residual", "intermediate_sizes")


class Distil(Distillation):
    """The recipe of `polyhead train distil`."""

    def __init__(self, settings: DistilSettings, run: RunSettings) -> None:
        changes = read_json(settings.student) if settings.student else {}
        if "num_heads" in changes and settings.num_layers and not settings.num_heads:
            raise RunError(f"{settings.student} has num_heads, one a layer: leave out --layers, or give --heads too")
        sizes = ("d_k", "d_v", "intermediate_size")
        changes |= {name: given for name in sizes if (given := getattr(settings, name))}
        teacher = find_subject(settings.model).checkpoint
        require_embedding(teacher, "a student is judged")
        whole = teacher.encoder.config
        if settings.num_layers or settings.num_heads:
            heads = settings.num_heads or max(whole.num_heads)
            changes["num_heads"] = [heads] * (settings.num_layers or whole.num_layers)
        config = student_config(whole, changes)
        layers = matched_layers(config.num_layers, whole.num_layers)
        super().__init__(
            make_student(config, teacher.encoder, layers, seed=run.seed, parts=not settings.from_nothing),
            replace(compared_by_cosines(teacher), removed={}),  # the student is another network
            read_material(settings.texts, settings.held_out),
            settings.weights,
            run,
            described={"student": changes, "from_nothing": settings.from_nothing},
            layers=layers if config.hidden_size == whole.hidden_size else (),
        )


def student_config(teacher: EncoderConfig, changes: Mapping[str, Any]) -> EncoderConfig:
    """The teacher's configuration with other values for some fields, as JSON types.

    RunError if they describe no network, or one that does not read the teacher's tokens into vectors of its size.
    """
    given = changes.get("num_heads")
    heads = tuple(given) if isinstance(given, list) else teacher.num_heads  # what is no list is refused below
    fields = _fields_of_student(teacher, heads) if heads and heads != teacher.num_heads else {}
    if "intermediate_size" in changes:
        fields["intermediate_sizes"] = []
    try:
        config = EncoderConfig.from_dict({**teacher.to_dict(), **fields, **changes})
    except ConfigError as error:
        raise RunError(f"the student cannot be built: {error}") from error
    for name in ("vocab_size", "task", "embedding_size"):
        own, whole = getattr(config, name), getattr(teacher, name)
        if own != whole:
            raise RunError(f"the student's {name} is {own}, the teacher's {whole}: they have to be the same")
    return replace(config, head_dropout=0.0)


def fields_of_layers(config: EncoderConfig, layers: Sequence[int]) -> dict[str, Any]:
    """Fields with a value for each layer, for a network of some of these layers, but for which share weights."""
    fields: dict[str, Any] = {
        name: tuple(getattr(config, name)[layer] for layer in layers) for name in PER_LAYER if getattr(config, name)
    }
    local = tuple(place for place, layer in enumerate(layers) if layer in config.local_layers)
    return fields | {"local_layers": local, "window": config.window if local else None}


def _fields_of_student(teacher: EncoderConfig, heads: Sequence[int]) -> dict[str, Any]:
    """The fields of the teacher's matched layers, as far as they fit a student of these heads."""
    matched = matched_layers(len(heads), teacher.num_layers)
    fields = fields_of_layers(teacher, matched)
    if teacher.num_key_value_heads:
        readers = [teacher.num_heads[other] / teacher.num_key_value_heads[other] for other in matched]
        shared = [own / each for own, each in zip(heads, readers, strict=True)]
        is_whole = not teacher.query_groups and all(count == int(count) for count in shared)
        fields |= {"num_key_value_heads": tuple(map(int, shared)) if is_whole else (), "query_groups": ()}
    if teacher.kept_heads and list(map(len, fields["kept_heads"])) != list(heads):
        fields |= {"kept_heads": (), "original_heads": 0}
    if teacher.value_residual:
        fields["value_residual"] = ((0, 1), *fields["value_residual"][1:])
    if teacher.shared_layers:
        of = [teacher.shared_layers[other] for other in matched]
        fields["shared_layers"] = tuple(of.index(first) for first in of)
    return fields


def matched_layers(student: int, teacher: int) -> list[int]:
    """Which of the teacher's layers each of the student's stands for: evenly spaced, the last one's is the last."""
    return [max(0, round((layer + 1) * teacher / student) - 1) for layer in range(student)]


def make_student(config: EncoderConfig, teacher: Encoder, layers: Sequence[int], *, seed: int, parts: bool) -> Encoder:
    """The student with weights drawn by the seed, or with `parts` the teacher's tensors where name and shape fit.

    A layer's are from that of `layers` that it stands for.
    """
    student = initialise(Encoder(config), seed)
    whole = teacher.state_dict() if parts else {}
    for name, tensor in student.state_dict().items():
        index, _, rest = name.removeprefix("layers.").partition(".")
        other = whole.get(f"layers.{layers[int(index)]}.{rest}" if name.startswith("layers.") else name)
        if other is not None and other.shape == tensor.shape:
            tensor.copy_(other)
    return student
