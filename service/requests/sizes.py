"""How large an answer will be, known before the model runs, and the refusal of what is too large."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import TooLarge
from service.requests.attention import ARRAY_FLOATS, FLOAT_BYTES, AttentionSelection, Axes
from service.requests.plan import EncodePlan
from service.settings import Settings

# Held of each number of an answer until it is read: float32 as computed and as selected or normalised, and as text.
TENSOR_BYTES = 4 + 4
BASE64_BYTES = TENSOR_BYTES + 6
JSON_BYTES = TENSOR_BYTES + 13
ARRAYS_OF_PARTS = 16  # made of each text's parts on the way to its norms and cosines, about
ENTITY_FLOATS = 64  # numbers that take as much space and time as one entity, about
POOLED_TOKENS = 2048  # of a document whose tokens share vectors: time and memory grow with the square
TOKEN_NUMBERS = 4  # for each token besides its vector: id, offsets, row
SPARSE_WORDS = 4096  # with a weight, at the most: trained models give a text a few hundred


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large an answer will be.

    Attributes:
        floats: in the answer, about; `built_from`: that are read to build it.
        attention_bytes: of the answer's attention.
        work_bytes: of the attention and the hidden states that are computed for it.
    """

    floats: int
    built_from: int
    attention_bytes: int
    work_bytes: int

    def held_bytes(self, encoding_format: str, *, as_safetensors: bool) -> int:
        """What is held from the first run until the answer is read, about."""
        as_text = BASE64_BYTES if encoding_format == "base64" else JSON_BYTES
        return self.work_bytes + (TENSOR_BYTES if as_safetensors else as_text) * self.floats


def check_sizes(
    plan: EncodePlan,
    lengths: Sequence[int],
    axes: Sequence[Axes],
    settings: Settings,
    *,
    block_floats: int,
    beside_bytes: int,
) -> Sizes:
    """The size of the answer to texts of these lengths and axes of attention; TooLarge above a limit.

    Its maps have `block_floats` next to them; `beside_bytes` of the caller's own count as read to build it.
    """
    request, config = plan.request, plan.manifest.config
    floats, beside = _output_floats(plan, lengths), beside_bytes // FLOAT_BYTES
    if (size := floats * FLOAT_BYTES) > settings.max_embedding_bytes:
        raise TooLarge(
            f"the answer would hold {size} bytes of embeddings, at most {settings.max_embedding_bytes} are allowed; "
            "send fewer inputs or ask for fewer dimensions",
            param="output",
        )
    if request.pool_factor is not None and (longest := max(lengths)) > POOLED_TOKENS:
        raise TooLarge.at(
            "pool_factor", f"a document has {longest} tokens, at most {POOLED_TOKENS} are pooled; send it in parts"
        )
    if plan.decomposes:
        figures = 2 * sum(length + 1 for length in lengths)  # norms and cosines, of each token and of the biases
        if (size := FLOAT_BYTES * figures) > settings.max_attention_bytes:
            raise TooLarge.at(
                "attention",
                f"the answer would hold {size} bytes of contributions, at most {settings.max_attention_bytes} are "
                "allowed; send fewer or shorter inputs",
            )
        work = config.output_size * sum(lengths)
        built_from = beside + floats + figures + work + ARRAYS_OF_PARTS * ARRAY_FLOATS * len(lengths)
        return Sizes(floats + figures, built_from, FLOAT_BYTES * figures, FLOAT_BYTES * work)
    hidden = config.hidden_size * sum(lengths) if plan.spans is not None or plan.token_numbers else 0
    if plan.selection is None:
        arrays = (1 if plan.is_one_array else len(lengths)) + (0 if plan.spans is None else len(plan.spans))
        arrays += 0 if request.pool_factor is None else sum(lengths)
        return Sizes(floats, beside + floats + hidden + ARRAY_FLOATS * arrays, 0, FLOAT_BYTES * hidden)
    is_half = request.encoding_format == "float16"
    attention_bytes = _attention_bytes(plan.selection, axes, settings, block_floats=block_floats, is_half=is_half)
    floats += attention_bytes // FLOAT_BYTES
    built_from = beside + max(floats, plan.selection.build_floats(axes)) + hidden
    work_bytes = FLOAT_BYTES * hidden + plan.selection.work_bytes(lengths)
    return Sizes(floats, built_from, attention_bytes, work_bytes)


def _attention_bytes(
    selection: AttentionSelection, axes: Sequence[Axes], settings: Settings, *, block_floats: int, is_half: bool
) -> int:
    size = selection.answer_bytes(axes, is_half=is_half) + FLOAT_BYTES * block_floats
    if size > settings.max_attention_bytes:
        raise TooLarge.at(
            "attention",
            f"the answer would hold {size} bytes of weights, at most {settings.max_attention_bytes} are allowed; ask "
            'for fewer layers or heads, for queries "cls", reduce, top_k or form "stats", or send fewer or shorter '
            "inputs",
        )
    work = selection.work_bytes([one.num_tokens for one in axes])
    if work > settings.max_attention_work_bytes:
        cure = "a rollout needs every layer:" if selection.options.reduce == "rollout" else "ask for fewer layers, or"
        raise TooLarge.at(
            "attention",
            f"{work} bytes of weights would be computed, at most {settings.max_attention_work_bytes} are allowed; "
            f"{cure} send fewer or shorter inputs",
        )
    return size


def _output_floats(plan: EncodePlan, lengths: Sequence[int]) -> int:
    """Numbers in the answer for texts of these lengths, without attention."""
    beside = TOKEN_NUMBERS if plan.request.return_tokens else 0
    if plan.request.outputs is not None:
        dense = len(lengths) * plan.dimensions if "dense" in plan.request.outputs else 0
        return dense + sum(lengths) * (plan.token_numbers + beside)
    if plan.is_one_array:
        return len(lengths) * plan.dimensions
    if plan.spans is not None:
        return len(plan.spans) * plan.dimensions
    if plan.request.output == "pooled" and plan.manifest.task == "sparse":
        return len(lengths) * 2 * min(plan.dimensions, SPARSE_WORDS)
    if plan.request.entities is not None:
        return sum(lengths) * max(plan.dimensions, ENTITY_FLOATS)
    return sum(lengths) * (plan.dimensions + beside)
