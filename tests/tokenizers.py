"""Small trained tokenizers of the kinds that encoders come with, put together as the families' own are."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.texts import PLAIN

VOCABULARY, LETTERS, WORDS, MOST_LETTERS = 400, 200, 60, 4
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [
    *PLAIN[:34],
    "The cats sat on the mats, unbelievably tokenised; don't they? (Yes: 3.14, abc123.)",
    "lower lowest newer newest wider widest",
]


def _count_pieces(made: Tokenizer, inside: str = "") -> Counter[str]:
    """The most frequent letters and words, and substrings of words that shorten texts most, by how often each occurs.

    A trainer breaks ties by chance, so every run would have another tokenizer. `inside` begins what is no word's start.
    """
    texts = [made.normalizer.normalize_str(text) if made.normalizer else text for text in TEXTS]
    words = [word for text in texts for word, _ in made.pre_tokenizer.pre_tokenize_str(text)]
    letters, longer, whole = Counter[str](), Counter[str](), Counter(word for word in words if len(word) > 1)
    for word in words:
        for start in range(len(word)):
            for size in range(1, min(MOST_LETTERS, len(word) - start) + 1):
                piece = word[start : start + size]
                (letters if size == 1 else longer)[(inside if start else "") + piece] += 1
    best = sorted(letters, key=lambda piece: (-letters[piece], piece))[:LETTERS]
    best += sorted(whole, key=lambda piece: (-whole[piece], piece))[:WORDS]
    best += sorted(longer, key=lambda piece: (-longer[piece] * len(piece), piece))
    counts = letters + longer + whole
    return Counter({piece: counts[piece] for piece in list(dict.fromkeys(best))[: VOCABULARY - 5]})


def _learn_pieces(made: Tokenizer, special: list[str], unknown: str) -> None:
    """SentencePiece's unigrams."""
    pieces = _count_pieces(made)
    total = sum(pieces.values())
    scores = [(piece, math.log(count / total)) for piece, count in pieces.items()]
    made.model = models.Unigram([*((token, 0.0) for token in special), *scores], special.index(unknown))
    made.add_special_tokens(special)


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
    vocabulary = [*BERT_TOKENS, *_count_pieces(made, inside="##")]
    made.model = models.WordPiece({piece: place for place, piece in enumerate(vocabulary)}, unk_token=BERT_TOKENS[1])
    made.add_special_tokens(BERT_TOKENS)
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
    _learn_pieces(made, ROBERTA_TOKENS, unknown="<unk>")
    return _surrounded(made, "<s> $A </s>", "<s> $A </s> </s> $B </s>")


@cache
def deberta() -> Tokenizer:
    """DeBERTa v3's, as `transformers` 4 converts it: SentencePiece pieces, with BERT's special tokens."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    _learn_pieces(made, BERT_TOKENS, unknown="[UNK]")
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
    letters = Counter("".join(TEXTS).replace(" ", "▁"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*special, *in_bytes],
        initial_alphabet=sorted(letters, key=lambda letter: (-letters[letter], letter))[:70],
        limit_alphabet=70,
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    described = json.loads(made.to_str())
    described["added_tokens"] = [entry for entry in described["added_tokens"] if entry["content"] in special]
    made = Tokenizer.from_str(json.dumps(described))  # bytes are pieces, not words to be found in a text
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _surrounded(made, "<bos> $A <eos>", "<bos> $A <eos> <bos> $B <eos>")


@cache
def mistral() -> Tokenizer:
    """e5-mistral's: made as Gemma's, and its file adds no token behind a text."""
    return _surrounded(Tokenizer.from_str(gemma().to_str()), "<bos> $A", "<bos> $A <bos> $B")


@cache
def t5() -> Tokenizer:
    """T5's: SentencePiece pieces, one token behind a text."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    _learn_pieces(made, ["<pad>", "</s>", "<unk>"], unknown="<unk>")
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
    "mistral": mistral,
    "t5": t5,
}
