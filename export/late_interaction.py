"""What a late-interaction checkpoint says of queries and documents, in each of the three forms that are published.

- sentence-transformers' own: `MultiVectorMask` in modules.json; lengths and expansion in the Transformer's settings.
- PyLate's: `model_type` ColBERT in config_sentence_transformers.json, with prefixes, lengths, expansion and skip list
  beside it; no modules behind the dense layers.
- Stanford's: the architecture HF_ColBERT, no modules.json, the settings in artifact.metadata, and the dense layer among
  the network's weights.

All three mean what `MultiVectorEncoder` of sentence-transformers makes of them.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from export.errors import UnsupportedModel
from export.sources import read_json
from model.config_parts import QueryExpansion

STANFORD = "HF_ColBERT"
PYLATE = "ColBERT"
METADATA = "artifact.metadata"
INLINE_DENSE = "linear.weight"
USUAL_LENGTH = 32  # of an expanded query, if nothing is said
MARKERS = {"query": "[unused0]", "document": "[unused1]"}  # Stanford's
PREFIXES = {"query": "query_prefix", "document": "document_prefix"}  # PyLate's names
ATTENDS = ("attend_to_expansion_tokens", "attend_to_mask_tokens")
PYLATE_SETTINGS = (
    *("query_length", "document_length", "query_expansion", "do_query_expansion", "skiplist_words"),
    *PREFIXES.values(),
    *ATTENDS,
)
OTHER_SCORES = ("mean_maxsim", "meanmaxsim", "xtr")  # of sentence-transformers; what older files say is MaxSim too


@dataclass(frozen=True, kw_only=True)
class LateInteraction:
    """How queries and documents are read: prompts by role, the longest ones in tokens.

    Attributes:
        markers: prompts that begin with a token, which the tokenizer must keep whole.
        expansion: of queries, as sentence-transformers' `QueryExpansionConfig`; None for none.
        skiplist_words: words whose tokens do not count, in the texts of `skiplist_tasks`.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    query_length: int | None = None
    document_length: int | None = None
    expansion: Mapping[str, Any] | None = None
    skiplist_words: tuple[str, ...] = ()
    skiplist_tasks: tuple[str, ...] = ("document",)


def read_late_interaction(around: Mapping[str, Any], settings: Mapping[str, Any], mask: Path | None) -> LateInteraction:
    """What PyLate's or sentence-transformers' files say; `settings` of the Transformer module count before `around`.

    Raises:
        UnsupportedModel: a setting that is not reproduced.
    """
    if around.get("similarity_fn_name") in OTHER_SCORES:
        raise UnsupportedModel(f"similarity_fn_name {around['similarity_fn_name']!r}: None, 'maxsim' is supported")
    said: Mapping[str, Any] = read_json(mask / "config.json") if mask else {}
    if said.get("keep_only_token_ids") is not None:
        raise UnsupportedModel("keep_only_token_ids is for images of pages: not supported")
    words = said.get("skiplist_words") if mask else around.get("skiplist_words")
    prefixes = {role: around[name] or "" for role, name in PREFIXES.items() if name in around}
    prompts = {role: text for role, text in (around.get("prompts") or {}).items() if role in PREFIXES}
    older = {name: around[name] for name in PYLATE_SETTINGS if name in around}
    known = {**_older_lengths(older), **settings} if older else settings
    tasks = said.get("skiplist_tasks") or "document"
    return LateInteraction(
        prompts={
            **{role: text or "" for role, text in prompts.items()},
            **{role: prefix + (prompts.get(role) or "").removeprefix(prefix) for role, prefix in prefixes.items()},
        },
        markers=tuple(prefixes.values()),
        query_length=known.get("query_length"),
        document_length=known.get("document_length"),
        expansion=known.get("query_expansion"),
        skiplist_words=tuple(string.punctuation if words is None and not mask else words or ()),
        skiplist_tasks=(tasks,) if isinstance(tasks, str) else tuple(tasks),
    )


def _older_lengths(older: Mapping[str, Any]) -> dict[str, Any]:
    lengths = {name: older[name] for name in ("query_length", "document_length") if older.get(name) is not None}
    if "query_expansion" in older:
        return {**lengths, "query_expansion": older["query_expansion"]}
    if older.get("do_query_expansion") is False:
        return {**lengths, "query_expansion": None}
    attend = next((older[name] for name in ATTENDS if older.get(name) is not None), False)
    length = lengths.pop("query_length", None) or USUAL_LENGTH
    return {**lengths, "query_expansion": {"strategy": "fixed", "attend": bool(attend), "length": length}}


def read_stanford(folder: Path) -> LateInteraction:
    """What artifact.metadata says; the usual settings without it."""
    said = read_json(folder / METADATA, optional=True)
    named = {"query": said.get("query_token_id"), "document": said.get("doc_token_id")}
    prompts = {role: f"{named[role] or marker} " for role, marker in MARKERS.items()}
    attend, length = bool(said.get("attend_to_mask_tokens")), said.get("query_maxlen") or USUAL_LENGTH
    return LateInteraction(
        prompts=prompts,
        markers=tuple(prompts.values()),
        document_length=said.get("doc_maxlen"),
        expansion={"strategy": "fixed", "attend": attend, "length": length},
        skiplist_words=tuple(string.punctuation) if said.get("mask_punctuation", True) else (),
    )


def keep_markers_whole(tokenizer: Tokenizer, markers: tuple[str, ...]) -> Tokenizer:
    """The tokenizer with markers that it knows, such as `[unused0]`, as tokens that it never splits.

    Stanford's and PyLate's training put their ids in front of the text; put there as text they would fall into pieces.
    A marker that is no token stays text.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    for marker in filter(str.strip, markers):
        token = next((form for form in (marker, marker.split(None, 1)[0]) if form in vocabulary), None)
        if token is not None and tokenizer.encode(token, add_special_tokens=False).tokens != [token]:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
    return tokenizer


def read_expansion(said: Mapping[str, Any] | None, tokenizer: Tokenizer, folder: Path) -> QueryExpansion | None:
    """The expansion with the id of its token, which is the mask if none is named.

    Raises:
        UnsupportedModel: another strategy, a token that the tokenizer does not have, or tokens before the query.
    """
    if said is None:
        return None
    if unknown := sorted(set(said) - {"strategy", "attend", "token", "length"}):
        raise UnsupportedModel(f"query_expansion has {', '.join(unknown)}: not supported")
    if (strategy := said.get("strategy")) not in ("fixed", "min"):
        raise UnsupportedModel(f"query_expansion strategy {strategy!r}: 'fixed', 'min' is supported")
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    if strategy == "fixed" and settings.get("padding_side") == "left":
        raise UnsupportedModel("query_expansion with padding_side 'left' puts its tokens before a query: not supported")
    token = said.get("token") or _mask_token(folder)
    token_id = tokenizer.token_to_id(str(token)) if token else None
    if token_id is None:
        raise UnsupportedModel(f"query_expansion by {token or 'the mask token'}: the tokenizer has no such token")
    return QueryExpansion(
        token_id=token_id, length=said["length"], attend=said.get("attend", False), truncate=strategy == "fixed"
    )


def _mask_token(folder: Path) -> str | None:
    """The mask, or the end of a text if there is none, as PyLate chooses."""
    for role in ("mask_token", "eos_token"):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            token = read_json(folder / name, optional=True).get(role)
            if token:
                return str(token["content"] if isinstance(token, dict) else token)
    kind = str(read_json(folder / "config.json", optional=True).get("model_type"))
    return {"bert": "[MASK]", "distilbert": "[MASK]", "xlm-roberta": "<mask>", "roberta": "<mask>"}.get(kind)
