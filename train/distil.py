"""Makes a network of another shape that gives its teacher's vectors: fewer layers or heads, other sizes of heads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.checkpoint import require_embedding
from export.heads.subject import find_subject
from train.distillation import Distillation, Weights, read_material
from train.settings import RunSettings
from train.student import make_student, matched_layers, student_config


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilSettings:
    """Who learns what from whom.

    Attributes:
        model: the teacher: artifact, folder or hub id; None for the default model.
        texts: files with one text a line.
        held_out: file of texts to judge by; None for a part of `texts`.
        student: fields of `EncoderConfig` in which the student differs from the teacher, as JSON types.
        num_layers: layers of the student, all with the same heads; None for what `student` says, or the teacher's.
        num_heads: heads of each layer; None for what `student` says, or the most that a layer of the teacher has.
        from_nothing: whether the student begins with drawn weights alone.
        weights: of the loss.
    """

    model: str | None
    texts: tuple[Path, ...]
    held_out: Path | None = None
    student: Mapping[str, Any] = field(default_factory=dict)
    num_layers: int | None = None
    num_heads: int | None = None
    from_nothing: bool = False
    weights: Weights = field(default_factory=Weights)


class Distil(Distillation):
    """The recipe of `polyhead train distil`."""

    def __init__(self, settings: DistilSettings, run: RunSettings) -> None:
        """Reads everything, and builds the student.

        Raises:
            SourceError: the teacher or a file cannot be used.
            RunError: there is no such student.
        """
        teacher = find_subject(settings.model).checkpoint
        require_embedding(teacher, "a student is judged")
        whole = teacher.encoder.config
        changes = dict(settings.student)
        if settings.num_layers or settings.num_heads:
            heads = settings.num_heads or max(whole.num_heads)
            changes["num_heads"] = [heads] * (settings.num_layers or whole.num_layers)
        config = student_config(whole, changes)
        layers = matched_layers(config.num_layers, whole.num_layers)
        parts = not settings.from_nothing
        student = make_student(config, teacher.encoder, layers, seed=run.seed, parts=parts)
        super().__init__(
            student,
            teacher,
            read_material(settings.texts, settings.held_out),
            settings.weights,
            run,
            described={"student": changes, "from_nothing": settings.from_nothing},
            layers=layers if config.hidden_size == whole.hidden_size else (),
        )
