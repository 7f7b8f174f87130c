"""Turns a checkpoint's tokenizer.json into the artifact's: no truncation, no padding, lowering made explicit.

A stored tokenizer carries the truncation and padding of whoever saved it last (128 tokens in all-MiniLM-L6-v2, whose
limit is 256); the service does both itself. Where tokenizer_config.json says otherwise, tokenizer.json is overruled as
`transformers` overrules it: its classes for BERT and RoBERTa set what they are told, or their defaults, over the file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from export.errors import SourceError, UnsupportedModel
from export.json_files import read_json
from export.vocabulary import (
    BERT_TOKENS,
    BYTE_LEVEL_KINDS,
    ROBERTA_TOKENS,
    WORDPIECE_KINDS,
    build_tokenizer,
    refuse_added_tokens,
    tokenizer_kind,
)

OVERRULED_WORDPIECE_KINDS = (*WORDPIECE_KINDS, "mpnet", "nomic_bert")
UNIGRAM_KINDS = ("xlmroberta", "xlm-roberta", "camembert")
SPECIAL: Mapping[str, Mapping[str, str]] = {  # tokens of a class by role, where tokenizer_config.json does not say
    **dict.fromkeys((*WORDPIECE_KINDS, "nomic_bert"), BERT_TOKENS),
    **dict.fromkeys((*BYTE_LEVEL_KINDS, *UNIGRAM_KINDS), ROBERTA_TOKENS),
    "mpnet": ROBERTA_TOKENS | {"unk": "[UNK]"},
}
TAKES_SPACE = ("mpnet", "camembert")  # the class's mask token takes the space before it, unless given with its flags
RARE = "\ua66e"  # in few vocabularies, so that it becomes the unknown token
AS_THEY_STAND = ("modernbert",)  # networks whose tokenizer.json `transformers` uses unchanged


def read_tokenizer(folder: Path, *, do_lower_case: bool = False) -> Tokenizer:
    """Reads and cleans a tokenizer.

    Args:
        folder: where tokenizer.json stands, or the files that came before it.
        do_lower_case: put a lowering in front of the normaliser, unless that is BERT's and lowers already: one more
            changes nothing, and the service would take a longer way through every text.

    Raises:
        SourceError: no tokenizer.json, or not one, and nothing that can be turned into one exactly; or malformed
            settings.
        UnsupportedModel: it cuts long texts at their beginning, or special tokens in a text.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = _load(path) if path.is_file() else build_tokenizer(folder)
        _refuse_left_truncation(tokenizer, folder)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer = _overrule(tokenizer, folder) if path.is_file() else tokenizer
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a value of another type
        raise SourceError(f"{folder}: the settings beside the tokenizer are malformed: {error!r:.200}") from error
    _require_readable(RARE, tokenizer, folder)
    normalizer = tokenizer.normalizer
    if do_lower_case and not (isinstance(normalizer, BertNormalizer) and normalizer.lowercase):
        tokenizer.normalizer = NormalizerSequence([Lowercase(), *([normalizer] if normalizer else [])])
    return tokenizer


def _require_readable(text: str, tokenizer: Tokenizer, folder: Path) -> None:
    """Some faults of a tokenizer show only when it meets a text."""
    try:
        tokenizer.encode(text)
    except Exception as error:  # the Rust side raises bare Exception
        raise SourceError(f"{folder}: the tokenizer fails on a text such as {text!r}: {error}") from error


def _load(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise SourceError(f"{path} is not a tokenizer: {error}") from error


def _overrule(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer as its class in `transformers` sets it up."""
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    network = read_json(folder / "config.json", optional=True)
    refuse_added_tokens(folder, settings, {token.content for token in tokenizer.get_added_tokens_decoder().values()})
    if settings.get("split_special_tokens"):
        raise UnsupportedModel(f"{folder}: split_special_tokens is not supported: special tokens in a text stay whole")
    kind = "" if network.get("model_type") in AS_THEY_STAND else tokenizer_kind(settings, network)
    if kind in OVERRULED_WORDPIECE_KINDS and isinstance(normalizer := tokenizer.normalizer, BertNormalizer):
        normalizer.lowercase = settings.get("do_lower_case", True)
        normalizer.strip_accents = settings.get("strip_accents")
        normalizer.handle_chinese_chars = settings.get("tokenize_chinese_chars", True)
        tokenizer.normalizer = normalizer
    if kind in BYTE_LEVEL_KINDS and isinstance(tokenizer.pre_tokenizer, ByteLevel):
        tokenizer = _with_prefix(tokenizer, settings)
    if kind in UNIGRAM_KINDS and isinstance(tokenizer.model, Unigram):
        scheme = "always" if settings.get("add_prefix_space", True) else "never"
        tokenizer.pre_tokenizer = PreTokenizerSequence([WhitespaceSplit(), Metaspace(prepend_scheme=scheme)])
    for entry in (settings.get("added_tokens_decoder") or {}).values():
        tokenizer.add_tokens([AddedToken(**entry)])  # known, as checked above: other flags take the place of its own
    named = _named_tokens(kind, settings, folder)
    _add_named(tokenizer, named)
    _require_ends(tokenizer, kind, named, folder)
    return tokenizer


def _named_tokens(kind: str, settings: Mapping[str, Any], folder: Path) -> dict[str, AddedToken]:
    """Special tokens by role, as the files beside tokenizer.json name them, or else their class."""
    # What special_tokens_map.json says counts first, and not at all where the newer field is there.
    is_new = "added_tokens_decoder" in settings
    older = {} if is_new else read_json(folder / "special_tokens_map.json", optional=True)
    named = {}
    for role in ROBERTA_TOKENS:
        token = older.get(f"{role}_token") or settings.get(f"{role}_token") or SPECIAL.get(kind, {}).get(role)
        if isinstance(token, str):
            token = {"content": token, "lstrip": role == "mask" and kind in TAKES_SPACE}
        if token is not None:
            flags = {name: value for name, value in token.items() if name != "__type"}
            named[role] = AddedToken(**{**flags, "special": True})
    return named


def _add_named(tokenizer: Tokenizer, named: Mapping[str, AddedToken]) -> None:
    """Special tokens that tokenizer.json holds as pieces only: where a text holds one, it stays whole."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in named.values():  # one that is no piece would get an id that no embedding has
        if token.content not in known and tokenizer.token_to_id(token.content) is not None:
            tokenizer.add_special_tokens([token])


def _require_ends(tokenizer: Tokenizer, kind: str, named: Mapping[str, AddedToken], folder: Path) -> None:
    """Refuses a tokenizer.json that puts other tokens around a text than its class in `transformers` would."""
    if kind not in SPECIAL:
        return
    roles = ("bos", "eos") if kind in UNIGRAM_KINDS else ("cls", "sep")
    expected = [named[role].content for role in roles]
    if (found := tokenizer.encode("").tokens) != expected:
        raise UnsupportedModel(
            f"{folder}: tokenizer.json puts {' '.join(found) or 'nothing'} around a text, its class in `transformers` "
            f"{' '.join(expected)}, as {' and '.join(f'{role}_token' for role in roles)} say: which is right?"
        )


def _with_prefix(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> Tokenizer:
    """Byte-level pieces with or without a space put in front of the text; its offsets follow from the same setting."""
    prefix = settings.get("add_prefix_space", False)
    if not isinstance(prefix, bool):
        raise TypeError(f"add_prefix_space is {prefix!r:.100}")
    described = json.loads(tokenizer.to_str())
    for part in (described["pre_tokenizer"], described["post_processor"] or {}):
        if "add_prefix_space" in part:
            part["add_prefix_space"] = prefix
    return Tokenizer.from_str(json.dumps(described))


def _refuse_left_truncation(tokenizer: Tokenizer, folder: Path) -> None:
    """The service keeps a long text's beginning; what `transformers` keeps, tokenizer_config.json says first."""
    stored = (tokenizer.truncation or {}).get("direction", "right")
    side = read_json(folder / "tokenizer_config.json", optional=True).get("truncation_side", stored)
    if side != "right":
        raise UnsupportedModel(f"{folder}: truncation_side {side!r} is not supported: long texts are cut at the right")
