"""Texts, and labels that a model was not trained for: the inputs that it reads.

A model of natural language inference reads each text with each label, put into a hypothesis, and says whether one
follows from the other (Yin et al. 2019). An embedder reads texts and hypotheses apart, and their cosines rank labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import orjson
from pydantic import Field

from model.artifact import Manifest
from service.errors import Invalid, TooLarge, WrongTask
from service.requests.schemas import EncodeRequest, ModelChoice, TextList, example
from service.tokenization.inputs import InputNames
from service.wire import AnswerModel, RequestModel

SLOT = "{}"
LABEL_BYTES = 46  # of a label in an answer, besides its own as JSON: its score, and the JSON around both
Method = Literal["entailment", "cosine"]
Template = Annotated[str, Field(max_length=1024)]  # every pair holds it


class ZeroShotParameters(RequestModel, extra="ignore"):
    """What huggingface_hub sends; other parameters are ignored."""

    candidate_labels: str | TextList
    """labels, or one text with commas between them"""
    hypothesis_template: Template | None = None
    multi_label: bool | None = None


class ZeroShotRequest(ModelChoice, extra="ignore"):
    """What `POST /zero-shot` takes; other fields are ignored."""

    model_config = example(inputs="The cat sat.", candidate_labels=["animals", "weather"])
    labels_name: ClassVar[str] = "candidate_labels"
    """what the caller calls the labels, for errors"""

    inputs: str | TextList
    """a text or a list of texts"""
    candidate_labels: str | TextList | None = None
    """labels, each whole whatever it holds; or one text with commas between them"""
    hypothesis_template: Template | None = None
    """the sentence that a label is put into, at `{}`; null for `"This example is {}."`, and for the label
    alone where an embedder compares"""
    multi_label: bool = False
    """each label is judged by itself; else the labels' scores add up to 1; cosines are what they are"""
    parameters: ZeroShotParameters | None = None
    """the same as huggingface_hub sends it, answered as it expects it: a list of `label` and `score`"""

    def plan(self, manifest: Manifest, most: int | None = None) -> "ZeroShotPlan":
        """What the model reads.

        Raises:
            Invalid: no labels, or a template without one place for the label.
            TooLarge: more than `most` pairs, or texts and labels.
            WrongTask: the model neither judges entailment nor has vectors.
        """
        given = self.parameters or self
        labels, template = given.candidate_labels, given.hypothesis_template
        if isinstance(labels, str):
            if most is not None and (count := labels.count(",") + 1) > most:  # a million would be long to take apart
                raise TooLarge.at("candidate_labels", f"{count}, at most {most} a request are taken")
            labels = [part.strip() for part in labels.split(",") if part.strip()]
        if not labels:
            raise Invalid.at(self.labels_name, "Field required: give at least one label")
        if template is not None and template.count(SLOT) != 1:  # with 500 places 1 MB of labels would become 500
            raise Invalid.at("hypothesis_template", f"expected {SLOT} once, where the label goes")
        texts = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        entailment = entailment_label(manifest)
        count = len(texts) + len(labels) if entailment is None else len(texts) * len(labels)
        if most is not None and count > most:
            raise TooLarge.at(
                "candidate_labels",
                f"{len(labels)} labels {'and' if entailment is None else 'of'} {len(texts)} texts are {count} inputs "
                f"to read, at most {most} a request are taken",
            )
        usual = SLOT if entailment is None else "This example is {}."  # as in the pipeline of `transformers`
        hypotheses = [(template or usual).replace(SLOT, label) for label in labels]
        if entailment is None:
            request = EncodeRequest(inputs=[*texts, *hypotheses], normalize=True)
        else:
            pairs = [[text, hypothesis] for text in texts for hypothesis in hypotheses]
            request = EncodeRequest(pairs=pairs, raw_scores=True, pair_truncation="only_first")
        return ZeroShotPlan(texts, labels, request, entailment, bool(given.multi_label), self.labels_name)


@dataclass(frozen=True, slots=True)
class ZeroShotPlan:
    """What a model is asked, and what is made of its answer.

    Attributes:
        request: to encode: of pairs by entailment, of texts and then hypotheses by cosines.
        entailment: which of the model's labels says that the hypothesis follows; None for cosines.
        multi_label: whether labels do not exclude each other.
        labels_name: what the caller calls the labels, for errors.
    """

    texts: Sequence[str]
    labels: Sequence[str]
    request: EncodeRequest
    entailment: int | None
    multi_label: bool
    labels_name: str = "candidate_labels"

    @property
    def names(self) -> InputNames:
        """What errors call the inputs of the request: a pair by its text."""
        names = [f"inputs[{place}]" for place in range(len(self.texts))]
        if self.entailment is None:
            return InputNames(each=[*names, *(f"{self.labels_name}[{place}]" for place in range(len(self.labels)))])
        return InputNames(each=[name for name in names for _ in self.labels])


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


def label_bytes(labels: Sequence[str], texts: int, most: int, *, param: str) -> int:
    """What the labels of an answer take, as every text's list has them all; refuses (TooLarge) more than `most`."""
    size = texts * sum(len(orjson.dumps(label)) + LABEL_BYTES for label in labels)
    if size > most:
        raise TooLarge.at(
            param,
            f"the answer would hold {size} bytes of labels and scores, at most {most} are allowed; send fewer texts a "
            "request",
        )
    return size


def entailment_label(manifest: Manifest) -> int | None:
    """Which label says that one text follows from the other; None of an embedder, WrongTask without such a label."""
    if manifest.task == "embedding":
        return None
    if manifest.task != "classification" or not manifest.pairs:
        raise WrongTask(
            f"{manifest.model} is for {manifest.task.replace('_', '-')}: zero-shot labels need a "
            "classifier of pairs with a label entailment, or an embedder"
        )
    found = [place for place, label in enumerate(manifest.labels) if label.lower().startswith("entail")]
    if not found or len(manifest.labels) < 2:
        raise WrongTask(
            f"{manifest.model} has no label entailment beside another (its labels are {', '.join(manifest.labels)}): "
            "zero-shot labels need a model of natural language inference, or an embedder"
        )
    return found[0]
