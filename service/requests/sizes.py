"""How large the answer of a planned request will be, so that what is too large is refused before the model runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import TooLarge
from service.requests.decomposition import DecompositionPlan
from service.requests.plan import EncodePlan
from service.requests.selection import ARRAY_FLOATS, FLOAT_BYTES, AttentionPlan, check_attention_size
from service.settings import Settings

# Held of each number of an answer until it is read: float32 as computed and as selected or normalised, and as text.
TENSOR_BYTES = 4 + 4
BASE64_BYTES = TENSOR_BYTES + 6
JSON_BYTES = TENSOR_BYTES + 13
ARRAYS_OF_PARTS = 16  # made of each text's parts on the way to its norms and cosines, about
SPARSE_WORDS = 4096  # with a weight, at the most: trained models give a text a few hundred


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large an answer will be, known before the model runs.

    Attributes:
        floats: in the answer, about.
        built_from: floats read to build it, about.
        attention_bytes: of the answer's attention.
        work_bytes: of the attention and the hidden states that are computed for it.
    """

    floats: int
    built_from: int
    attention_bytes: int
    work_bytes: int

    def held_bytes(self, encoding_format: str, *, as_safetensors: bool) -> int:
        """What is held from the first run until the answer is read, about."""
        if as_safetensors:
            return self.work_bytes + TENSOR_BYTES * self.floats
        return self.work_bytes + (BASE64_BYTES if encoding_format == "base64" else JSON_BYTES) * self.floats


def check_sizes(plan: EncodePlan, lengths: Sequence[int], attention: AttentionPlan | None, settings: Settings) -> Sizes:
    """How large the answer will be, for texts of these lengths in tokens.

    Raises:
        TooLarge: larger than the settings allow; the message says what would make it smaller.
    """
    if (size := _output_floats(plan, lengths) * FLOAT_BYTES) > settings.max_embedding_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of embeddings, at most {settings.max_embedding_bytes} are allowed; "
            "send fewer inputs or ask for fewer dimensions",
            param="output",
        )
    hidden_bytes = 0 if plan.spans is None else plan.spans.work_bytes(lengths)
    if plan.decomposition is not None:
        return _decomposition_sizes(plan.decomposition, size, lengths, settings)
    if attention is None:
        arrays = 1 if plan.is_one_array else len(lengths)
        return Sizes(size // FLOAT_BYTES, size // FLOAT_BYTES + ARRAY_FLOATS * arrays, 0, hidden_bytes)
    attention_bytes = check_attention_size(
        attention.selection,
        attention.axes,
        is_half=plan.request.encoding_format == "float16",
        max_bytes=settings.max_attention_bytes,
        max_work_bytes=settings.max_attention_work_bytes,
    )
    floats = (size + attention_bytes) // FLOAT_BYTES
    built_from = max(floats, attention.selection.build_floats(attention.axes))
    return Sizes(floats, built_from, attention_bytes, hidden_bytes + attention.selection.work_bytes(lengths))


def _decomposition_sizes(
    decomposition: DecompositionPlan, embedding_bytes: int, lengths: Sequence[int], settings: Settings
) -> Sizes:
    answer_bytes = decomposition.answer_bytes(lengths, settings.max_attention_bytes)
    work_bytes, floats = decomposition.work_bytes(lengths), (embedding_bytes + answer_bytes) // FLOAT_BYTES
    built_from = floats + work_bytes // FLOAT_BYTES + ARRAYS_OF_PARTS * ARRAY_FLOATS * len(lengths)
    return Sizes(floats, built_from, answer_bytes, work_bytes)


def _output_floats(plan: EncodePlan, lengths: Sequence[int]) -> int:
    """Numbers in the answer for texts of these lengths, without attention."""
    if plan.is_one_array:
        return len(lengths) * plan.dimensions
    if plan.spans is not None:
        return len(plan.spans) * plan.dimensions
    if plan.request.output == "pooled" and plan.task == "sparse":
        return len(lengths) * 2 * min(plan.dimensions, SPARSE_WORDS)
    return sum(lengths) * plan.dimensions
