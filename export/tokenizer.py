"""Turns a checkpoint's tokenizer into the artifact's: no truncation, no padding, lowercasing made explicit.

A stored tokenizer.json carries the truncation and padding of whoever saved it last (128 tokens in all-MiniLM-L6-v2,
whose limit is 256); the service does both itself. If tokenizer_config.json says otherwise, tokenizer.json is overruled
as `transformers` overrules it: its classes for BERT and RoBERTa set what they are told, or their defaults, over it.
Llama's and Gemma's put tokens around a text by `add_bos_token` and `add_eos_token`. Release 5 neither reads nor writes
these beside a tokenizer.json, so files that have them are older, and mean them: e5-mistral-7b-instruct pools a `</s>`
that its tokenizer.json does not add.

Of the files that came before tokenizer.json, vocab.txt becomes BERT's WordPiece, and vocab.json with merges.txt
RoBERTa's byte-level BPE. A sentencepiece.bpe.model holds rules that only SentencePiece's own library reads.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence
from tokenizers.processors import RobertaProcessing, TemplateProcessing

from export.errors import ExportError, SourceError, UnsupportedModel
from export.sources import read_json, refuse_pointer

WORDPIECE, BYTE_LEVEL = ("vocab.txt",), ("vocab.json", "merges.txt")
WORDPIECE_KINDS = ("bert", "distilbert", "electra")
BYTE_LEVEL_KINDS = ("roberta",)
UNIGRAM_KINDS = ("xlmroberta", "xlm-roberta", "camembert")
OVERRULED_WORDPIECE_KINDS = (*WORDPIECE_KINDS, "mpnet", "nomic_bert")
TWO_SEPARATORS = (*BYTE_LEVEL_KINDS, *UNIGRAM_KINDS, "mpnet")  # classes of `transformers`: <s> A </s></s> B </s>
GIVE_TYPES = ("bert", "electra", "nomic_bert", "debertav2", "deberta-v2")  # classes whose second text has token type 1
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
ROBERTA_TOKENS |= {"cls": "<s>", "sep": "</s>"}
SPECIAL: Mapping[str, Mapping[str, str]] = {  # tokens of a class by role, where tokenizer_config.json does not say
    **dict.fromkeys((*WORDPIECE_KINDS, "nomic_bert"), BERT_TOKENS),
    **dict.fromkeys((*BYTE_LEVEL_KINDS, *UNIGRAM_KINDS), ROBERTA_TOKENS),
    "mpnet": ROBERTA_TOKENS | {"unk": "[UNK]"},
}
TAKES_SPACE = ("mpnet", "camembert")  # their mask token includes the space before it, unless it is given with flags
OWN_CODE = ("bertjapanese", "bertweet", "phobert")  # `transformers` reads these by code of their own alone
RARE = "\ua66e"  # in few vocabularies, so that it becomes the unknown token
FLAGGED: Mapping[str, tuple[str, str]] = {  # classes of `transformers` 4 that read these flags; their own tokens
    **dict.fromkeys(("llama", "codellama"), ("<s>", "</s>")),
    "gemma": ("<bos>", "<eos>"),
}
FLAGS: Mapping[str, bool] = {"add_bos_token": True, "add_eos_token": False}  # and their defaults
ENDS = ("bos", "eos")
AS_THEY_STAND = ("modernbert",)  # networks whose tokenizer.json `transformers` uses unchanged
SAVE_FAST = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of `transformers` writes one"


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
        tokenizer = load_tokenizer(path) if path.is_file() else build_tokenizer(folder)
        _refuse_left_truncation(tokenizer, folder)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer = _overrule(tokenizer, folder) if path.is_file() else tokenizer
    except ExportError:
        raise
    except Exception as error:  # the Rust side raises bare Exception, of a value of another type too
        raise SourceError(f"{folder}: the tokenizer's settings are malformed: {error!r:.200}") from error
    refuse_failing(tokenizer, folder)
    normalizer = tokenizer.normalizer
    if do_lower_case and not (isinstance(normalizer, BertNormalizer) and normalizer.lowercase):
        tokenizer.normalizer = NormalizerSequence([Lowercase(), *([normalizer] if normalizer else [])])
    return tokenizer


def refuse_failing(tokenizer: Tokenizer, folder: Path) -> None:
    """Refuses, with a SourceError, a tokenizer that fails on a text that its vocabulary does not hold."""
    try:
        tokenizer.encode(RARE)
    except Exception as error:  # the Rust side raises bare Exception
        raise SourceError(f"{folder}: the tokenizer fails on a text such as {RARE!r}: {error}") from error


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, as it stands.

    Raises:
        SourceError: it is missing, or holds something else.
    """
    refuse_pointer(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise SourceError(f"{path} is not a tokenizer: {error}") from error


def _overrule(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer as its class in `transformers` sets it up."""
    settings, kind = read_settings(folder)
    refuse_added_tokens(folder, settings, {token.content for token in tokenizer.get_added_tokens_decoder().values()})
    if settings.get("split_special_tokens"):
        raise UnsupportedModel(f"{folder}: split_special_tokens is not supported: special tokens in a text stay whole")
    if read_json(folder / "config.json", optional=True).get("model_type") in AS_THEY_STAND:
        kind = ""
    if kind in OVERRULED_WORDPIECE_KINDS and isinstance(normalizer := tokenizer.normalizer, BertNormalizer):
        normalizer.lowercase = settings.get("do_lower_case", True)
        normalizer.strip_accents = settings.get("strip_accents")
        normalizer.handle_chinese_chars = settings.get("tokenize_chinese_chars", True)
        tokenizer.normalizer = normalizer
    if kind in BYTE_LEVEL_KINDS and isinstance(tokenizer.pre_tokenizer, ByteLevel):
        # A space in front of the text or none; offsets follow from the same setting.
        tokenizer = _with_setting(tokenizer, "add_prefix_space", settings.get("add_prefix_space", False))
    if kind in UNIGRAM_KINDS and isinstance(tokenizer.model, Unigram):
        scheme = "always" if settings.get("add_prefix_space", True) else "never"
        tokenizer.pre_tokenizer = PreTokenizerSequence([WhitespaceSplit(), Metaspace(prepend_scheme=scheme)])
    for entry in (settings.get("added_tokens_decoder") or {}).values():
        tokenizer.add_tokens([AddedToken(**entry)])  # known, as checked above: other flags take the place of its own
    named = _named_tokens(kind, settings, folder)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in named.values():  # one that is held as a piece stays whole; one that is no piece has no embedding
        if token.content not in known and tokenizer.token_to_id(token.content) is not None:
            tokenizer.add_special_tokens([token])
    if kind in FLAGGED and FLAGS.keys() & settings.keys():
        own = {role: named[role].content if role in named else FLAGGED[kind][place] for place, role in enumerate(ENDS)}
        _surround(tokenizer, settings, own, folder)
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


def _surround(tokenizer: Tokenizer, settings: Mapping[str, Any], tokens: Mapping[str, str], folder: Path) -> None:
    """Puts the tokens around a text, and around each of a pair, that `FLAGS` ask for; `tokens` are by role."""
    wanted = {role: tokens[role] for role, flag in zip(ENDS, FLAGS, strict=True) if settings.get(flag, FLAGS[flag])}
    ids = {role: tokenizer.token_to_id(token) for role, token in wanted.items()}
    if missing := [role for role, index in ids.items() if index is None]:
        raise SourceError(
            f"{folder}: tokenizer_config.json asks for add_{missing[0]}_token, and tokenizer.json has no "
            f"{wanted[missing[0]]}"
        )
    if tokenizer.encode("").ids == list(ids.values()):
        return
    first, last = ([wanted[role]] if role in wanted else [] for role in ENDS)
    tokenizer.post_processor = TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=[(wanted[role], index) for role, index in ids.items()],
    )


def _require_ends(tokenizer: Tokenizer, kind: str, named: Mapping[str, AddedToken], folder: Path) -> None:
    """Refuses a tokenizer.json that puts other tokens around a text than its class in `transformers` would."""
    if kind not in SPECIAL:
        return
    roles = ENDS if kind in UNIGRAM_KINDS else ("cls", "sep")
    expected = [named[role].content for role in roles]
    if (found := tokenizer.encode("").tokens) != expected:
        raise UnsupportedModel(
            f"{folder}: tokenizer.json puts {' '.join(found) or 'nothing'} around a text, its class in `transformers` "
            f"{' '.join(expected)}, as {' and '.join(f'{role}_token' for role in roles)} say: which is right?"
        )


def _with_setting(tokenizer: Tokenizer, name: str, value: object) -> Tokenizer:
    """The tokenizer with another value of a setting wherever its pre-tokenizer or post-processor has it."""
    described = json.loads(tokenizer.to_str())
    for part in ("pre_tokenizer", "post_processor"):
        text = json.dumps(described[part])
        described[part] = json.loads(text, object_hook=lambda held: held | {name: value} if name in held else held)
    return Tokenizer.from_str(json.dumps(described))


def _refuse_left_truncation(tokenizer: Tokenizer, folder: Path) -> None:
    """The service keeps a long text's beginning; what `transformers` keeps, tokenizer_config.json says first."""
    stored = (tokenizer.truncation or {}).get("direction", "right")
    side = read_json(folder / "tokenizer_config.json", optional=True).get("truncation_side", stored)
    if side != "right":
        raise UnsupportedModel(f"{folder}: truncation_side {side!r} is not supported: long texts are cut at the right")


def build_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder without tokenizer.json.

    Raises:
        SourceError: no vocabulary, one of another kind, or one that does not hold what the tokenizer needs.
    """
    settings, kind = read_settings(folder)
    present = {path.name for path in folder.iterdir()}
    if kind in WORDPIECE_KINDS and present.issuperset(WORDPIECE):
        tokenizer, special = _wordpiece(folder, settings)
    elif kind in BYTE_LEVEL_KINDS and present.issuperset(BYTE_LEVEL):
        tokenizer, special = _byte_level(folder, settings)
    else:
        if kind in OWN_CODE:
            raise SourceError(
                f"{folder / 'tokenizer.json'} is missing, and a {kind} tokenizer is code of its own, which is never run"
            )
        found = sorted(name for name in present if name.endswith((".model", ".spm", *WORDPIECE, *BYTE_LEVEL)))
        raise SourceError(
            f"{folder / 'tokenizer.json'} is missing, and a {kind} tokenizer cannot be made exactly of what else is "
            f"there ({', '.join(found) or 'nothing'}): {SAVE_FAST}"
        )
    refuse_added_tokens(folder, settings, {token.content for token in special})
    tokenizer.add_special_tokens(special)
    return tokenizer


def read_settings(folder: Path) -> tuple[dict[str, Any], str]:
    """tokenizer_config.json, and the kind of tokenizer.

    That is `bert` of BertTokenizer or BertTokenizerFast, where a file names a class; else the network's own type.
    """
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    config = read_json(folder / "config.json", optional=True)
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    name = str(named).removesuffix("Fast").removesuffix("Tokenizer")
    return settings, name.lower() or str(config.get("model_type"))


def refuse_own_code(folder: Path, *, compared: bool) -> None:
    """Refuses a tokenizer.json beside a class that does not read it, unless its ids are `compared` with that class's.

    Raises:
        UnsupportedModel: names the class.
    """
    _, kind = read_settings(folder)
    if kind in OWN_CODE and not compared:
        raise UnsupportedModel(
            f"{folder}: a {kind} tokenizer is code of its own, and tokenizer.json may give other tokens: install the "
            "extra `verify`, and what that code needs, so that both are compared"
        )


def _wordpiece(folder: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, list[AddedToken]]:
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
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
    """Refuses, with a SourceError, words of other files: `transformers` finds them whole, and no file says how."""
    named = {**read_json(folder / "special_tokens_map.json", optional=True), **settings}
    entries = list((settings.get("added_tokens_decoder") or {}).values())
    for field in ("additional_special_tokens", "extra_special_tokens"):
        more = named.get(field) or []
        entries += more.values() if isinstance(more, dict) else more
    written = {entry if isinstance(entry, str) else entry["content"] for entry in entries}
    added = {*read_json(folder / "added_tokens.json", optional=True), *written}
    if others := sorted(added - known):
        raise SourceError(f"{folder}: added tokens such as {others[0]!r} cannot be converted exactly; {SAVE_FAST}")


def prepare_pairs(tokenizer: Tokenizer, folder: Path, *, types: int) -> tuple[Tokenizer, bool]:
    """The folder's tokenizer with the original's token types for a network of `types`, and whether it makes pairs.

    Raises:
        UnsupportedModel: its class in `transformers` makes other pairs.
    """
    settings, kind = read_settings(folder)
    _require_template(tokenizer, kind, folder)
    named = settings.get("model_input_names")
    gives_types = "token_type_ids" in named if isinstance(named, list) else kind in GIVE_TYPES
    if types == 1 or (types and not gives_types):
        tokenizer = _with_setting(tokenizer, "type_id", 0)
        if any(tokenizer.encode("a", "a").type_ids):
            raise UnsupportedModel("the network or its tokenizer has one token type, and tokenizer.json gives two")
    elif types and kind in GIVE_TYPES and tokenizer.encode("", "").type_ids != [0, 0, 1]:
        raise UnsupportedModel(
            f"{folder}: tokenizer.json gives a pair's parts the token types {tokenizer.encode('', '').type_ids}, "
            "its class in `transformers` [0, 0, 1]: which is right?"
        )
    return tokenizer, {0, 1} <= set(tokenizer.encode("a", "b").sequence_ids)


def without_trailing(tokenizer: Tokenizer, token_id: int) -> tuple[Tokenizer, int]:
    """The tokenizer without this token at the end of its templates, and by how many tokens a text is shorter."""
    described = json.loads(tokenizer.to_str())
    processor = described["post_processor"] or {}
    for part in processor.get("processors", [processor]):
        if part.get("type") == "TemplateProcessing":
            ids = {name: token["ids"] for name, token in part["special_tokens"].items()}
            for pieces in (part["single"], part["pair"]):
                while pieces and ids.get(pieces[-1].get("SpecialToken", {}).get("id")) == [token_id]:
                    pieces.pop()
    made = Tokenizer.from_str(json.dumps(described))
    return made, tokenizer.num_special_tokens_to_add(False) - made.num_special_tokens_to_add(False)


def _require_template(tokenizer: Tokenizer, kind: str, folder: Path) -> None:
    """Refuses a pair that is not the single text's special tokens plus the separators of the class."""
    around, found = tokenizer.encode("").tokens, tokenizer.encode("", "").tokens
    separators = 2 if kind in TWO_SEPARATORS else 1  # [CLS] A [SEP] B [SEP]
    expected = around + around[-1:] * separators
    if kind in (*TWO_SEPARATORS, *WORDPIECE_KINDS) and found != expected:  # other classes take tokenizer.json as it is
        raise UnsupportedModel(
            f"{folder}: tokenizer.json puts {' '.join(found) or 'nothing'} around a pair, its class in `transformers` "
            f"{' '.join(expected) or 'nothing'}: which is right?"
        )
