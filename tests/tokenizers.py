"""Small trained tokenizers of the kinds that encoders come with, put together as the families' own are."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.texts import PLAIN

VOCABULARY = 400
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [
    *PLAIN[:34],
    "The cats sat on the mats, unbelievably tokenised; don't they? (Yes: 3.14, abc123.)",
    "lower lowest newer newest wider widest",
]


def _train_pieces(made: Tokenizer, special: list[str], unknown: str) -> None:
    """Learns SentencePiece's unigrams."""
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=special, unk_token=unknown, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)


def _surrounded(made: Tokenizer, single: str, pair: str) -> Tokenizer:
    """The tokenizer, with these tokens around a text and a pair."""
    special = [(token, made.token_to_id(token)) for token in single.split() if not token.startswith("$")]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    return made


@cache
def wordpiece() -> Tokenizer:
    """BERT's: lowered, split at spaces, punctuation and ideographs, `##` inside words."""
    made = Tokenizer(models.WordPiece(unk_token=BERT_TOKENS[1]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=BERT_TOKENS, limit_alphabet=200, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return _surrounded(made, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


@cache
def bpe() -> Tokenizer:
    """RoBERTa's: byte-level, a leading space is part of a word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*ROBERTA_TOKENS[:-1], AddedToken("<mask>", lstrip=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return made


@cache
def unigram() -> Tokenizer:
    """XLM-RoBERTa's: SentencePiece pieces with `▁` in front of a word."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC()])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    _train_pieces(made, ROBERTA_TOKENS, unknown="<unk>")
    return _surrounded(made, "<s> $A </s>", "<s> $A </s> </s> $B </s>")


@cache
def deberta() -> Tokenizer:
    """DeBERTa v3's: SentencePiece pieces, with BERT's special tokens."""
    made = Tokenizer(models.Unigram())
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    made.normalizer = normalizers.Sequence([spaces, normalizers.NFC(), normalizers.Strip(left=False)])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    _train_pieces(made, BERT_TOKENS, unknown="[UNK]")
    return _surrounded(made, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(
    special: list[str], normalizer: normalizers.Normalizer | None, digits: str, more: Sequence[str] = ()
) -> Tokenizer:
    """Byte-level BPE whose words are found by a pattern, as since GPT-4; `digits` is its part for numbers."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizer
    pattern = GPT_4.replace(r"|\p{N}|", rf"|{digits}|")
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*TEXTS, *more], trainer)
    return made


@cache
def qwen() -> Tokenizer:
    """Qwen3-Embedding's: one token behind a text."""
    made = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC(), r"\p{N}")
    return _surrounded(made, "$A <|endoftext|>", "$A <|endoftext|> $B <|endoftext|>")


@cache
def qwen_chat() -> Tokenizer:
    """Qwen3's own: nothing added to a text, and tokens for turns, thoughts and the two answers of its reranker."""
    special, more = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["yes", "no", "why?\nwho?\n"] * 99
    made = _byte_level(special, normalizers.NFC(), r"\p{N}", more)
    made.add_tokens(["<think>", "</think>"])
    made.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return made


@cache
def llama3() -> Tokenizer:
    """EuroBERT's, made from Llama 3's: numbers in threes, one token before a text and one behind it."""
    made = _byte_level(["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"], None, r"\p{N}{1,3}")
    single = "<|begin_of_text|> $A <|end_of_text|>"
    _surrounded(made, single, f"{single} $B <|end_of_text|>")
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), made.post_processor])
    return made


@cache
def gemma() -> Tokenizer:
    """Gemma's: SentencePiece's BPE, `▁` for every space, bytes for what no piece has."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))  # noqa: S106 - a token
    made.normalizer = normalizers.Replace(" ", "▁")
    words = pre_tokenizers.Split("▁", behavior="merged_with_next")  # its pieces were learned within words
    made.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    in_bytes = [AddedToken(f"<0x{byte:02X}>", special=False, normalized=False) for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[*special, *in_bytes], limit_alphabet=70, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    described = json.loads(made.to_str())
    described["added_tokens"] = [entry for entry in described["added_tokens"] if entry["content"] in special]
    made = Tokenizer.from_str(json.dumps(described))  # bytes are pieces, not words to be found in a text
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _surrounded(made, "<bos> $A <eos>", "<bos> $A <eos> <bos> $B <eos>")


@cache
def t5() -> Tokenizer:
    """T5's: SentencePiece pieces, one token behind a text."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    _train_pieces(made, ["<pad>", "</s>", "<unk>"], unknown="<unk>")
    return _surrounded(made, "$A </s>", "$A </s> $B </s>")


TOKENIZERS: Mapping[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "bpe": bpe,
    "unigram": unigram,
    "deberta": deberta,
    "qwen": qwen,
    "llama3": llama3,
    "qwen-chat": qwen_chat,
    "gemma": gemma,
    "t5": t5,
}
