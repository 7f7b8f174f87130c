"""Networks of published shapes, randomly initialised, to export and measure: speed does not depend on weights.

The tokenizer, and with it the vocabulary, is the default model's, which is BERT's.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file

from benchmarks.lib.command import parser_of, program
from export.sources import find_folder
from model.artifact import TOKENIZER
from model.config import EncoderConfig
from model.encoder import Encoder

VOCABULARY, POSITIONS, TOKEN_TYPES = 30522, 512, 2
# Layers, heads a layer and hidden size (Devlin et al. 2019, section 3; Wang et al. 2020 for MiniLM).
SHAPES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"minilm-l6": (6, 12, 384), "bert-base": (12, 12, 768), "bert-large": (24, 16, 1024)}
)
INITIALIZER_RANGE = 0.05  # of the reranker: BERT's 0.02 gives nearly the same score to every document


@program
def network() -> None:
    """Writes an encoder of a published shape with randomly initialised weights.

    `python -m benchmarks inputs network bert-base build/bert-base`, then `polyhead export build/bert-base`.
    """
    _write(network.__doc__, lambda shape, folder: write_network(make_network(shape), folder))


@program
def reranker() -> None:
    """Writes a cross-encoder of a published shape, randomly initialised, as sentence-transformers reads it.

    `python -m benchmarks inputs reranker minilm-l6 build/reranker`, then `polyhead export build/reranker`.
    """
    _write(reranker.__doc__, write_reranker)


def make_network(shape: str) -> Encoder:
    """An encoder of the shape, as PyTorch initialises its layers."""
    layers, heads, hidden = SHAPES[shape]
    config = EncoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_heads=(heads,) * layers,
        d_k=hidden // heads,
        d_v=hidden // heads,
        intermediate_size=4 * hidden,
        max_positions=POSITIONS,
        type_vocab_size=TOKEN_TYPES,
    )
    return Encoder(config).eval()


def write_network(encoder: Encoder, folder: Path) -> None:
    """Writes the folder that an export takes; raises `FileExistsError` if it exists."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "polyhead", **encoder.config.to_dict()}))
    save_file(encoder.state_dict(), folder / "model.safetensors")
    shutil.copy(find_folder(None).path / TOKENIZER, folder / TOKENIZER)


def write_reranker(shape: str, folder: Path) -> None:
    """Writes a checkpoint's folder; raises `FileExistsError` if it exists.

    Both token types have one vector. Infinity's ONNX engine gives every token the first type, and would put the
    documents in another order.
    """
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415 - of the extra `test`

    layers, heads, hidden = SHAPES[shape]
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=POSITIONS,
        type_vocab_size=TOKEN_TYPES,
        initializer_range=INITIALIZER_RANGE,
        id2label={0: "score"},
    )
    folder.mkdir(parents=True)
    network = BertForSequenceClassification(config)
    types = network.bert.embeddings.token_type_embeddings.weight
    types.data[1:] = types.data[0]
    network.save_pretrained(folder)
    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copy(find_folder(None).path / name, folder / name)


def _write(doc: str | None, write: Callable[[str, Path], None]) -> None:
    parser = parser_of(doc, takes="seconds; bert-large writes 1.3 GB")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="written; must not exist")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists: name a folder that does not")
    torch.manual_seed(0)
    write(arguments.shape, arguments.folder)
    print(f"polyhead export {arguments.folder}")
