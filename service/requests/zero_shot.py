"""Texts, and labels that a model was not trained for: the inputs that it reads. Nothing has run yet.

A model of natural language inference reads each text with each label, put into a hypothesis, and says whether one
follows from the other (Yin et al. 2019). An embedder reads texts and hypotheses apart, and their cosines rank labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from model.artifact import Manifest
from service.errors import Invalid, TooLarge, WrongTask
from service.requests.schemas import EncodeRequest, ModelChoice, TextList
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

SLOT = "{}"
TEMPLATES = {"entailment": "This example is {}.", "cosine": SLOT}  # the first is the pipeline's of `transformers`
LONGEST_TEMPLATE = 1024  # characters; every pair holds it
MOST_LABEL_CHARACTERS = 1024
LABEL_BYTES = 48  # of a label in an answer, besides its own: its score, and the JSON around both
Method = Literal["entailment", "cosine"]


class ZeroShotParameters(RequestModel):
    """What huggingface_hub sends; other parameters are ignored."""

    model_config = ConfigDict(extra="ignore")

    candidate_labels: str | TextList
    """labels, or one text with commas between them"""
    hypothesis_template: str | None = None
    multi_label: bool | None = None


class ZeroShotRequest(ModelChoice):
    """What `POST /zero-shot` takes; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"inputs": "The cat sat.", "candidate_labels": ["animals", "weather"]}]},
    )

    inputs: str | TextList
    """a text or a list of texts"""
    candidate_labels: str | TextList | None = None
    """labels, each whole whatever it holds; or one text with commas between them"""
    hypothesis_template: Annotated[str, Field(max_length=LONGEST_TEMPLATE)] | None = None
    """the sentence that a label is put into, at `{}`; null for `"This example is {}."`, and for the label
    alone where an embedder compares"""
    multi_label: bool = False
    """each label is judged by itself; else the labels' scores add up to 1; cosines are what they are"""
    parameters: ZeroShotParameters | None = None
    """the same as huggingface_hub sends it, answered as it expects it: a list of `label` and `score`"""

    def resolve(self, most: int | None = None) -> "ZeroShot":
        """What is asked for, checked as far as it goes without the model.

        Args:
            most: texts, and labels, that a request may have; more are refused unread. None for no limit.

        Raises:
            Invalid: no labels, an empty text or label, a label twice, or a template without a place for the label.
            TooLarge: more texts or labels than allowed.
        """
        given = self.parameters or self
        if (labels := given.candidate_labels) is None:
            raise Invalid.at("candidate_labels", "Field required")
        texts = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        for name, count in (
            ("inputs", len(texts)),
            ("candidate_labels", labels.count(",") + 1 if isinstance(labels, str) else len(labels)),
        ):
            if most is not None and count > most:
                raise TooLarge.at(name, f"{count}, at most {most} a request are taken")
        if isinstance(labels, str):
            labels = [part.strip() for part in labels.split(",") if part.strip()]
        return ZeroShot(texts, labels, given.hypothesis_template, multi_label=bool(given.multi_label))


class LabelScores(AnswerModel):
    """One text's labels, best first."""

    labels: list[str]
    scores: list[float]


class ZeroShotAnswer(AnswerModel):
    """What `POST /zero-shot` answers; one entry a text, in their order."""

    model: str
    method: Method
    """`"entailment"`: a label follows from a text, and scores are probabilities; `"cosine"`: an embedder
    compares the text with each label, and scores are cosines"""
    results: list[LabelScores]
    usage: dict[str, int]


@dataclass(frozen=True, slots=True)
class ZeroShot:
    """Texts and labels.

    Attributes:
        texts: at least one, none empty.
        labels: at least one, none empty, none twice.
        template: holds `{}` once; None for the method's own.
        multi_label: whether labels do not exclude each other.
    """

    texts: Sequence[str]
    labels: Sequence[str]
    template: str | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        if not self.labels:
            raise Invalid.at("candidate_labels", "the list is empty; give at least one label")
        first: dict[str, int] = {}
        for place, label in enumerate(self.labels):
            name = f"candidate_labels[{place}]"
            if not label.strip():
                raise Invalid.at(name, "an empty label")
            if len(label) > MOST_LABEL_CHARACTERS:
                raise TooLarge.at(name, f"{len(label)} characters, at most {MOST_LABEL_CHARACTERS}")
            if label in first:
                raise Invalid.at(name, f"the same as candidate_labels[{first[label]}]")
            first[label] = place
        for place, text in enumerate(self.texts):
            if not text.strip():
                raise Invalid.at(f"inputs[{place}]", "an empty text has no label")
        if self.template is not None and (self.template.count(SLOT) != 1 or len(self.template) > LONGEST_TEMPLATE):
            raise Invalid.at(
                "hypothesis_template",
                f"expected {SLOT} once, where the label goes, in at most {LONGEST_TEMPLATE} characters",
            )

    def plan(self, manifest: Manifest, max_texts: int | None = None) -> "ZeroShotPlan":
        """What the model reads.

        Raises:
            WrongTask: the model neither judges entailment nor has vectors.
            TooLarge: more pairs, or more texts and labels, than allowed.
        """
        entailment = entailment_label(manifest)
        method: Method = "cosine" if entailment is None else "entailment"
        texts, labels = len(self.texts), len(self.labels)
        count = texts + labels if entailment is None else texts * labels
        if max_texts is not None and count > max_texts:
            what = f"{labels} labels and {texts} texts" if entailment is None else f"{labels} labels of {texts} texts"
            raise TooLarge.at(
                "candidate_labels", f"{what} are {count} inputs to read, at most {max_texts} a request are taken"
            )
        template = self.template or TEMPLATES[method]
        hypotheses = [template.replace(SLOT, label) for label in self.labels]
        if entailment is None:
            return ZeroShotPlan(self, method, EncodeRequest(inputs=[*self.texts, *hypotheses], normalize=True))
        pairs = [[text, hypothesis] for text in self.texts for hypothesis in hypotheses]
        request = EncodeRequest(pairs=pairs, raw_scores=True, pair_truncation="only_first")
        return ZeroShotPlan(self, method, request, entailment)


@dataclass(frozen=True, slots=True)
class ZeroShotPlan:
    """What a model is asked, and what is made of its answer.

    Attributes:
        wanted: texts and labels.
        method: how labels are ranked.
        request: to encode.
        entailment: which of the model's labels says that the hypothesis follows; 0 for cosines.
    """

    wanted: ZeroShot
    method: Method
    request: EncodeRequest
    entailment: int = 0

    @property
    def names(self) -> InputNames:
        """What errors call the inputs of the request: a pair by its text."""
        texts, labels = self.wanted.texts, self.wanted.labels
        names = [f"inputs[{place}]" for place in range(len(texts))]
        if self.method == "cosine":
            return InputNames(each=[*names, *(f"candidate_labels[{place}]" for place in range(len(labels)))])
        return InputNames(each=[name for name in names for _ in labels])


def label_bytes(labels: Sequence[str], texts: int, most: int, *, param: str) -> int:
    """What the labels of an answer take: every text's list has them all.

    Raises:
        TooLarge: more bytes than `most`.
    """
    size = texts * sum(len(label.encode()) + LABEL_BYTES for label in labels)
    if size > most:
        raise TooLarge.at(
            param,
            f"the answer would hold {size} bytes of labels and scores, at most {most} are allowed; send fewer texts a "
            "request",
        )
    return size


def entailment_label(manifest: Manifest) -> int | None:
    """Which label says that one text follows from the other; None of an embedder, which has no labels.

    Raises:
        WrongTask: the model has no such label, or does not read two texts.
    """
    if manifest.task == "embedding":
        return None
    names = [label.lower() for label in manifest.labels]
    if manifest.task != "classification" or not manifest.pairs:
        raise WrongTask(
            f"{manifest.model} is for {manifest.task.replace('_', '-')}: zero-shot labels need a "
            "classifier of pairs with a label entailment, or an embedder"
        )
    found = [place for place, name in enumerate(names) if name.startswith("entail")]
    if not found or len(names) < 2:
        raise WrongTask(
            f"{manifest.model} has no label entailment beside another (its labels are {', '.join(manifest.labels)}): "
            "zero-shot labels need a model of natural language inference, or an embedder"
        )
    return found[0]
