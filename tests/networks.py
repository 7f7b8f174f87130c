"""Small networks that several tests build."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from export.texts import Inputs, TextBatch, graph_inputs
from model.artifact import Defaults, Source
from model.config import EncoderConfig
from model.encoder import Encoder

if TYPE_CHECKING:
    from export.checkpoint import Checkpoint

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    *("the", "cat", "sat", "on", "a", "mat", "dog", "ran", "##s", ".", "new", "york"),
)
BERT_CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 48,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
TINY = EncoderConfig(
    vocab_size=48,
    hidden_size=32,
    num_heads=(4, 3, 0, 1),
    d_k=8,
    d_v=5,
    intermediate_size=64,
    max_positions=40,
    type_vocab_size=2,
)


def draw_weights(encoder: Encoder, seed: int = 0) -> Encoder:
    """Weights of a size that makes attention far from uniform, biases and norms away from their neutral values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            neutral = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(neutral + noise * (0.3 if parameter.ndim > 1 else 0.1))
    return encoder.eval().requires_grad_(False)


def vary(**change: Any) -> EncoderConfig:
    """The tiny network with other settings; all heads alike unless said otherwise."""
    return replace(TINY, **{"num_heads": (4, 4), **change})


# Its matrices are large enough for `explain.onnx` to name their places in the encoder's file.
ONE_LAYER = vary(num_heads=(2,), hidden_size=128, d_k=16, d_v=64, intermediate_size=128)


def tiny_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer of `WORDS`."""
    made = Tokenizer(WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106 - a token of the vocabulary
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def tiny_network(encoder: Encoder, tokenizer: Tokenizer, name: str = "tiny") -> "Checkpoint":
    """A checkpoint of a network for embeddings, normalised."""
    from export.checkpoint import Checkpoint  # noqa: PLC0415 - every family, which most users of this module do not read

    return Checkpoint(
        name=name,
        source=Source(id=name, revision=None, sha256="0" * 64),
        encoder=encoder,
        tokenizer=tokenizer,
        defaults=Defaults(pooling="mean", normalize=True, prompts={}, default_prompt_name=None),
        max_sequence_length=encoder.config.max_positions,
    )


def random_batches(seed: int, count: int = 8) -> list[TextBatch]:
    """Eight rows of up to 12 of the tiny network's tokens a batch."""
    generator = torch.Generator().manual_seed(seed)
    return [
        TextBatch(torch.randint(0, 48, (8, 12), generator=generator), torch.randint(1, 13, (8,), generator=generator))
        for _ in range(count)
    ]


def batch_of(
    config: EncoderConfig, rows: Sequence[NDArray[np.integer]], padding: int = 0, layers: Collection[int] = ()
) -> Inputs:
    """Rows of ids as a graph reads them, with this much padding behind the longest, whose ids must not matter."""
    ids = np.full((len(rows), max(map(len, rows)) + padding), 7)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return graph_inputs(config, ids, np.array([len(row) for row in rows]), layers=layers)
