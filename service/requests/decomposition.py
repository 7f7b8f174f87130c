"""What is explained through the network, before anything has run: whether it can be, and what it costs.

`POST /explain` asks for it with `through: "network"`, `POST /encode` with attention of the form "decomposition".
"""

from collections.abc import Sequence

from model.artifact import EXPLAIN_GRAPH, Manifest
from service.errors import Invalid, TooLarge
from service.requests.attention import EXCLUDED
from service.requests.schemas import EncodeRequest, refuse_beside
from service.tokenization.inputs import InputNames

PARAM = "attention.form"
TEXTS_AT_MOST = 2  # of the greatest length: what one `POST /explain` may cost


def check_decomposition(request: EncodeRequest, manifest: Manifest) -> None:
    """Refuses attention of the form "decomposition" that cannot be answered.

    Raises:
        Invalid: the model has no vectors to decompose or no graph for it, or another field excludes it.
    """
    if manifest.task != "embedding":
        cure = "; POST /explain decomposes a classifier's scores" if manifest.task == "classification" else ""
        raise Invalid.at(PARAM, f"{manifest.model} returns no vector of a text (its task is {manifest.task}){cure}")
    if EXPLAIN_GRAPH not in manifest.files:
        raise Invalid.at(PARAM, missing_graph(manifest))
    if request.attention is not None:
        form = 'form "decomposition"'
        refuse_beside(request.attention, EXCLUDED["decomposition"], form, inside="attention.")
        refuse_beside(request, ("head_mask", "spans", "output"), f"attention of the {form}")


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
