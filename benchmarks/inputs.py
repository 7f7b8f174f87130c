"""Networks of published shapes, randomly initialised, to export and measure: speed does not depend on weights.

The tokenizer, and with it the vocabulary, is the default model's, which is BERT's.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.lib.command import parser_of, program
from export.sources import find_folder
from model.artifact import TOKENIZER
from model.config import EncoderConfig
from model.encoder import Encoder

VOCABULARY, POSITIONS, TOKEN_TYPES = 30522, 512, 2
# Layers, heads a layer and hidden size (Devlin et al. 2019, section 3; Wang et al. 2020 for MiniLM).
SHAPES: Mapping[str, tuple[int, int, int]] = {
    "minilm-l6": (6, 12, 384),
    "bert-base": (12, 12, 768),
    "bert-large": (24, 16, 1024),
}
INITIALIZER_RANGE = 0.05  # of the reranker: BERT's 0.02 gives nearly the same score to every document


@program
def network() -> None:
    """Writes an encoder of a published shape with randomly initialised weights.

    `python -m benchmarks inputs network bert-base build/bert-base`, then `polyhead export build/bert-base`.
    """
    (layers, heads, hidden), folder = _begin(network.__doc__)
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
    (folder / "config.json").write_text(json.dumps({"model_type": "polyhead", **config.to_dict()}))
    save_file(Encoder(config).state_dict(), folder / "model.safetensors")


@program
def reranker() -> None:
    """Writes a cross-encoder of a published shape, randomly initialised, as sentence-transformers reads it.

    `python -m benchmarks inputs reranker minilm-l6 build/reranker`, then `polyhead export build/reranker`. Both token
    types have one vector: Infinity's ONNX engine gives every token the first type, and would put the documents in
    another order.
    """
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415 - of the extra `test`

    (layers, heads, hidden), folder = _begin(reranker.__doc__)
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
    made = BertForSequenceClassification(config)
    types = made.bert.embeddings.token_type_embeddings.weight
    types.data[1:] = types.data[0]
    made.save_pretrained(folder)


def _begin(doc: str | None) -> tuple[tuple[int, int, int], Path]:
    """The shape, and the folder with its tokenizer; raises `FileExistsError` if the folder exists."""
    parser = parser_of(doc, takes="seconds; bert-large writes 1.3 GB")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="written; must not exist")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.folder.mkdir(parents=True)
    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copy(find_folder(None).path / name, arguments.folder / name)
    print(f"polyhead export {arguments.folder}")
    return SHAPES[arguments.shape], arguments.folder
