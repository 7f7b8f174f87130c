"""`long_texts: "mean"`: what a request may not ask for besides."""

from model.manifest import Manifest
from service.errors import Invalid
from service.requests.schemas import EncodeRequest
from service.tokenization.inputs import Inputs

PARAM = "long_texts"


def check_long_texts(request: EncodeRequest, inputs: Inputs, manifest: Manifest) -> None:
    """Refuses what has no mean of windows.

    Raises:
        Invalid: no texts, a task without one vector a text, or an answer that has an entry a token.
    """
    if inputs.texts is None:
        raise Invalid(f"{PARAM}: only texts are read in windows, not token ids or pairs; send texts", param=PARAM)
    if manifest.task != "embedding":
        raise Invalid(
            f"{PARAM}: {manifest.model} gives no vector of a text to take the mean of (its task is {manifest.task})",
            param=PARAM,
        )
    for name, is_asked in (
        ('output "tokens"', request.output == "tokens"),
        ("attention", request.attention is not None),
        ("spans", request.spans is not None),
    ):
        if is_asked:
            raise Invalid(f"{PARAM}: {name} is of a text read whole; leave one of the two out", param=PARAM)
