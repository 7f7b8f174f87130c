"""Small trained tokenizers of the three kinds that encoders come with, put together as the families' own are."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests.texts import PLAIN

VOCABULARY = 400
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [
    *PLAIN[:34],
    "The cats sat on the mats, unbelievably tokenised; don't they? (Yes: 3.14, abc123.)",
    "lower lowest newer newest wider widest",
]


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
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


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
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY,
        special_tokens=ROBERTA_TOKENS,
        unk_token=ROBERTA_TOKENS[3],
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


TOKENIZERS: Mapping[str, Callable[[], Tokenizer]] = MappingProxyType(
    {"wordpiece": wordpiece, "bpe": bpe, "unigram": unigram}
)
