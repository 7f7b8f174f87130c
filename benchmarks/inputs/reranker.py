"""Writes a cross-encoder of a published shape with drawn weights, as `transformers` and sentence-transformers read it.

`python -m benchmarks.inputs reranker minilm-l6 build/reranker`, then `python -m export --output DIR build/reranker`.
The tokenizer is the default model's, which is BERT's. Weights are drawn widely, so that scores of documents differ.
"""

import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.inputs.network import POSITIONS, SHAPES, TOKEN_TYPES, VOCABULARY
from benchmarks.lib.command import parser_of, program, seed
from export.sources import find_folder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
INITIALIZER_RANGE = 0.05  # BERT's 0.02 gives nearly the same score to every document


def write(shape: str, folder: Path, *, seed: int = 0) -> None:
    """Writes the checkpoint's folder.

    Raises:
        FileExistsError: it exists.
    """
    layers, heads, hidden = SHAPES[shape]
    torch.manual_seed(seed)
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
    BertForSequenceClassification(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(find_folder(None).path / name, folder / name)


@program
def main() -> None:
    """Writes one."""
    parser = parser_of(__doc__, takes="seconds; bert-large writes 1.3 GB")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="written; must not exist")
    parser.add_argument("--seed", type=seed, default=0, help="of the weights")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists: name a folder that does not")
    write(arguments.shape, arguments.folder, seed=arguments.seed)
    print(f"python -m export --output DIR {arguments.folder}")
