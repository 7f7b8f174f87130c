"""How a model reads queries and how documents: prompts, lengths, and what queries are made longer by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from model.artifact import Manifest
from model.config_parts import MultiVectorSettings, QueryExpansion
from service.errors import Invalid
from service.requests.schemas import EncodeRequest, refuse_beside
from service.tokenization.inputs import Inputs
from service.tokenization.rows import TokenizedInput, expand

Role = Literal["query", "document"]

PROMPTS: Mapping[Role, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names of prompts, in the order in which sentence-transformers looks for them."""

INPUT_TYPES: Mapping[str, Role] = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), "query"),
    **dict.fromkeys(("document", "passage", "search_document", "retrieval.passage"), "document"),
}
"""What the clients of Cohere, Jina, Voyage and NVIDIA call the two roles; they name other kinds of texts, too."""


@dataclass(frozen=True, slots=True)
class TextRole:
    """How texts of one role are read: with a prompt, at most `most_tokens` of each, special tokens left out.

    Texts of no role are read as they are; of a pair each text may have a bound of its own.
    """

    prompt_name: str | None = None
    most_tokens: tuple[int] | tuple[None, int] | None = None
    expansion: QueryExpansion | None = None

    def expand(self, tokenized: Sequence[TokenizedInput]) -> list[TokenizedInput]:
        """Texts with the expansion behind those that are shorter than it."""
        return [text if self.expansion is None else expand(text, self.expansion) for text in tokenized]


def text_role(role: Role, manifest: Manifest, added: int) -> TextRole:
    """How the model reads texts of a role; `added` is how many special tokens a text gets."""
    prompt = next((name for name in PROMPTS[role] if name in manifest.defaults.prompts), None)
    settings = manifest.config.task_settings
    if not isinstance(settings, MultiVectorSettings):
        return TextRole(prompt)
    expansion = settings.query_expansion if role == "query" else None
    longest = settings.query_length if role == "query" else settings.document_length
    if expansion and expansion.truncate:
        longest = expansion.length
    return TextRole(prompt, None if longest is None else (max(1, longest - added),), expansion)


def prompt_of_kind(kind: str | None, manifest: Manifest) -> str | None:
    """The name of the model's prompt for a kind of text as other services name it; None for its default prompt."""
    role = INPUT_TYPES.get(kind or "")
    return None if role is None else text_role(role, manifest, 0).prompt_name


def role_of_request(
    request: EncodeRequest, inputs: Inputs, manifest: Manifest, added: int
) -> tuple[EncodeRequest, TextRole]:
    """The role of a request's texts, and the request with the prompt of that.

    Raises:
        Invalid: the model reads queries and documents alike, or the role does not go with what else is asked for.
    """
    if request.role is None:
        return request, TextRole()
    role = text_role(request.role, manifest, added)
    tells_apart = any(name in manifest.defaults.prompts for names in PROMPTS.values() for name in names)
    if not (manifest.task == "multi_vector" or manifest.query_table or tells_apart):
        raise Invalid.at("role", f"{manifest.model} reads queries and documents alike; leave it out")
    if inputs.texts is None:
        raise Invalid.at("role", "token ids and pairs are read as they are given; send texts")
    refuse_beside(request, ("prompt", "prompt_name"), "role, which chooses the prompt")
    if role.expansion is not None:
        refuse_beside(request, ("attention", "truncate"), "queries that end in tokens which are no text")
    if manifest.query_table and request.role == "query":
        refuse_beside(request, ("attention", "head_mask", "output"), "queries that a table of weights reads")
    name = role.prompt_name if request.prompt is None else None  # an empty prompt means none
    return request.model_copy(update={"prompt_name": name}), role
