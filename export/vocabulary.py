"""Builds a tokenizer from the files that came before tokenizer.json, where that can be done exactly.

vocab.txt becomes BERT's WordPiece, vocab.json with merges.txt RoBERTa's byte-level BPE, both as `transformers` puts
them together. A sentencepiece.bpe.model holds rules that only SentencePiece's own library reads: it is refused, with
what to do instead.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import RobertaProcessing, TemplateProcessing

from export.errors import SourceError
from export.json_files import read_json

WORDPIECE, BYTE_LEVEL = ("vocab.txt",), ("vocab.json", "merges.txt")
WORDPIECE_KINDS = ("bert", "distilbert", "electra")
BYTE_LEVEL_KINDS = ("roberta",)
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>"} | {
    "mask": "<mask>"
}
SAVE_FAST = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of `transformers` writes one"


def build_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder without tokenizer.json.

    Raises:
        SourceError: no vocabulary, one of another kind, or one that does not hold what the tokenizer needs.
    """
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    kind = tokenizer_kind(settings, read_json(folder / "config.json", optional=True))
    present = {path.name for path in folder.iterdir()}
    if kind in WORDPIECE_KINDS and present.issuperset(WORDPIECE):
        tokenizer, special = _wordpiece(folder, settings)
    elif kind in BYTE_LEVEL_KINDS and present.issuperset(BYTE_LEVEL):
        tokenizer, special = _byte_level(folder, settings)
    else:
        raise SourceError(_missing(folder, kind, present))
    refuse_added_tokens(folder, settings, {token.content for token in special})
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_kind(settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """`bert` of BertTokenizer or BertTokenizerFast, where either file names a class; else the network's own type."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    name = str(named).removesuffix("Fast").removesuffix("Tokenizer")
    return name.lower() or str(config.get("model_type"))


def _missing(folder: Path, kind: str, present: set[str]) -> str:
    pieces = sorted(name for name in present if name.endswith((".model", ".spm")))
    if pieces:
        found = f"there is {pieces[0]}, which cannot be converted here without risk"
    elif found_files := sorted(present & {*WORDPIECE, *BYTE_LEVEL}):
        found = f"{', '.join(found_files)} of a {kind} tokenizer cannot be converted exactly here"
    else:
        found = "and there is no vocabulary either"
    return f"{folder / 'tokenizer.json'} is missing, {found}: {SAVE_FAST}"


def _wordpiece(folder: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, list[AddedToken]]:
    try:
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise SourceError(f"{folder / 'vocab.txt'} is no UTF-8 text: {error}") from error
    vocabulary = {token: index for index, token in enumerate(lines) if token or index + 1 < len(lines)}
    if settings.get("do_basic_tokenize") is False or settings.get("never_split"):
        raise SourceError(f"{folder}: do_basic_tokenize and never_split cannot be converted exactly; {SAVE_FAST}")
    special = _special_tokens(folder, settings, BERT_TOKENS, vocabulary)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=special["unk"].content))
    tokenizer.normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    first, last = special["cls"].content, special["sep"].content
    tokenizer.post_processor = TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(token, vocabulary[token]) for token in (first, last)],
    )
    return tokenizer, list(special.values())


def _byte_level(folder: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, list[AddedToken]]:
    try:
        vocabulary, merges = BPE.read_file(*(str(folder / name) for name in BYTE_LEVEL))
        tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=False))
    except Exception as error:  # the Rust side raises bare Exception
        raise SourceError(f"{folder / BYTE_LEVEL[0]} and {BYTE_LEVEL[1]} cannot be read: {error}") from error
    special = _special_tokens(folder, settings, ROBERTA_TOKENS, vocabulary)
    prefix = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=prefix)
    last, first = ((special[name].content, vocabulary[special[name].content]) for name in ("sep", "cls"))
    tokenizer.post_processor = RobertaProcessing(last, first, settings.get("trim_offsets", True), prefix)
    return tokenizer, list(special.values())


def _special_tokens(
    folder: Path, settings: Mapping[str, Any], defaults: Mapping[str, str], vocabulary: Mapping[str, int]
) -> dict[str, AddedToken]:
    """The tokens that must never be split, by role; a folder may name its own, as text or with their flags."""
    named = {**read_json(folder / "special_tokens_map.json", optional=True), **settings}
    found: dict[str, AddedToken] = {}
    for role, default in defaults.items():
        token = named.get(f"{role}_token", default)
        flags = {"content": token} if isinstance(token, str) else dict(token or {"content": default})
        flags.pop("__type", None)
        found[role] = AddedToken(**{"normalized": False, **flags, "special": True})
        if found[role].content not in vocabulary:
            raise SourceError(f"{folder}: the vocabulary does not hold {role}_token {found[role].content!r}")
    return found


def refuse_added_tokens(folder: Path, settings: Mapping[str, Any], known: set[str]) -> None:
    """Refuses words added beside the tokenizer: `transformers` finds them whole, and how is not written there.

    Raises:
        SourceError: names the first.
    """
    named = {**read_json(folder / "special_tokens_map.json", optional=True), **settings}
    entries = list((settings.get("added_tokens_decoder") or {}).values())
    for field in ("additional_special_tokens", "extra_special_tokens"):
        more = named.get(field) or []
        entries += more.values() if isinstance(more, dict) else more
    written = {entry if isinstance(entry, str) else entry["content"] for entry in entries}
    added = {*read_json(folder / "added_tokens.json", optional=True), *written}
    if others := sorted(added - known):
        raise SourceError(f"{folder}: added tokens such as {others[0]!r} cannot be converted exactly; {SAVE_FAST}")
