"""Writes a network of a published shape with drawn weights, to export and measure: speed does not depend on weights.

`python -m benchmarks.inputs network bert-base build/bert-base`, then `python -m export --output DIR build/bert-base`.
The tokenizer, and with it the vocabulary, is the default model's, which is BERT's.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file

from benchmarks.lib.command import parser_of, program, seed
from export.sources import find_folder
from model.artifact import TOKENIZER
from model.config import EncoderConfig
from model.encoder import Encoder

VOCABULARY, POSITIONS, TOKEN_TYPES = 30522, 512, 2
# Layers, heads a layer and hidden size (Devlin et al. 2019, section 3; Wang et al. 2020 for MiniLM).
SHAPES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"minilm-l6": (6, 12, 384), "bert-base": (12, 12, 768), "bert-large": (24, 16, 1024)}
)


def draw(shape: str, *, seed: int = 0) -> Encoder:
    """An encoder of the shape, as PyTorch draws its layers."""
    layers, heads, hidden = SHAPES[shape]
    torch.manual_seed(seed)
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


def write(encoder: Encoder, folder: Path) -> None:
    """Writes the folder that `python -m export` takes.

    Raises:
        FileExistsError: it exists.
    """
    folder.mkdir(parents=True)
    settings = {"model_type": "polyhead", **encoder.config.to_dict()}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(encoder.state_dict(), folder / "model.safetensors")
    shutil.copy(find_folder(None).path / TOKENIZER, folder / TOKENIZER)


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
    write(draw(arguments.shape, seed=arguments.seed), arguments.folder)
    print(f"python -m export --output DIR {arguments.folder}")
