"""What is explained through the network, before anything has run: whether it can be, and what it costs.

`POST /explain` asks for it with `through: "network"`, `POST /encode` with attention of the form "decomposition".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.artifact import EXPLAIN_GRAPH, Manifest
from service.errors import Invalid, TooLarge
from service.requests.attention import FLOAT_BYTES
from service.requests.schemas import AttentionRequest, EncodeRequest
from service.tokenization.inputs import InputNames

PARAM = "attention.form"
TEXTS_AT_MOST = 2  # of the greatest length: what one `POST /explain` may cost
FIGURES = 2  # a token: norm and cosine


@dataclass(frozen=True, slots=True)
class DecompositionPlan:
    """What each input token gives to its text's vector, as `POST /encode` answers it.

    Attributes:
        options: whether tokens or words are listed.
        output_size: D' of the model's vectors.
    """

    options: AttentionRequest
    output_size: int

    def answer_bytes(self, lengths: Sequence[int], max_bytes: int) -> int:
        """Bytes of the numbers in the answer for texts of these lengths; each text has an entry of the biases.

        Raises:
            TooLarge: more than allowed.
        """
        size = FLOAT_BYTES * FIGURES * sum(length + 1 for length in lengths)
        if size > max_bytes:
            raise TooLarge.at(
                "attention",
                f"the answer would hold {size} bytes of contributions, at most {max_bytes} are allowed; send fewer or "
                "shorter inputs",
            )
        return size

    def work_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of the parts that are computed for it."""
        return FLOAT_BYTES * self.output_size * sum(lengths)


def plan_decomposition(request: EncodeRequest, manifest: Manifest) -> DecompositionPlan | None:
    """The plan of a request; None where it asks for no decomposition.

    Raises:
        Invalid: the model has no vectors to decompose or no graph for it, or another field excludes it.
    """
    options = request.attention
    if options is None or options.form != "decomposition":
        return None
    if manifest.task != "embedding":
        cure = "; POST /explain decomposes a classifier's scores" if manifest.task == "classification" else ""
        raise Invalid.at(PARAM, f"{manifest.model} returns no vector of a text (its task is {manifest.task}){cure}")
    if EXPLAIN_GRAPH not in manifest.files:
        raise Invalid.at(PARAM, missing_graph(manifest))
    _refuse_contradictions(request, options)
    return DecompositionPlan(options, manifest.config.output_size)


def missing_graph(manifest: Manifest) -> str:
    """Why an artifact has no graph that explains, and how to get one."""
    missing = "this artifact has no explain.onnx, the graph that explains through the network"
    if not manifest.config.is_decomposable:
        return f"{missing}: its layers have a part that is not taken apart (a third norm, or signals from embeddings)"
    if manifest.precision == "fp32":
        return f"{missing}: export the model again"
    return (
        f"{missing}: it is in {manifest.precision}, in which parts would not add up to its vectors; export the model "
        "in fp32 too and ask a server of that artifact"
    )


def check_explained(
    lengths: Sequence[int], max_explained: int, *, names: InputNames, cure: str = "send a shorter text"
) -> None:
    """Refuses texts that would cost too much to explain: a text's cost is the square of its tokens.

    Args:
        lengths: of the texts, in tokens.
        max_explained: of a text.
        names: of the texts, for errors.
        cure: of a text that is too long.

    Raises:
        TooLarge: one is longer, or all together cost more than two of the greatest length.
    """
    for index, tokens in enumerate(lengths):
        if tokens > max_explained:
            raise TooLarge.at(
                names.of(index),
                f"{tokens} tokens, at most {max_explained} are explained through the network, which costs "
                f"their square; {cure}",
            )
    most, rows = TEXTS_AT_MOST * max_explained**2, sum(tokens**2 for tokens in lengths)
    if rows > most:
        raise TooLarge(
            f"{names.all}: the squares of the texts' tokens add up to {rows}, at most {most} are explained through the "
            "network in one request; send fewer texts",
            param=names.field,
        )


def _refuse_contradictions(request: EncodeRequest, options: AttentionRequest) -> None:
    defaults = AttentionRequest()
    for field in ("layers", "heads", "queries", "reduce", "top_k", "exclude_special", "renormalise"):
        if getattr(options, field) != getattr(defaults, field):
            raise Invalid.at(
                f"attention.{field}",
                f'form "decomposition" follows tokens through all heads of all layers; leave {field} out',
            )
    for field, is_asked in (
        ("head_mask", bool(request.head_mask)),
        ("spans", request.spans is not None),
        ("output", request.output == "tokens"),
    ):
        if is_asked:
            raise Invalid.at(
                field, f'form "decomposition" is of the pooled vector of the whole network; leave {field} out'
            )
