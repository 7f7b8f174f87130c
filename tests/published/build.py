"""Builds a published model small: its layout, settings and accessory files, with random weights a few dozen wide.

`models.toml` holds facts of published folders: what config.json says, modules.json, which files lie beside them.
"""

import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from export.sources import read_json
from tests.export.conftest import write_json, write_modules
from tests.family_models import FamilyModel, draw
from tests.jina_bert_reference import draw_tensors
from tests.tokenizers import TOKENIZERS

WIDTH, VOCABULARY, POSITIONS = 32, 400, 480
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
WORDS: Mapping[str, Sequence[str]] = {  # what families call the four numbers of a shape
    "distilbert": ("dim", "n_layers", "n_heads", "hidden_dim"),
    "nomic": ("n_embd", "n_layer", "n_head", "n_inner"),
    "t5": ("d_model", "num_layers", "num_heads", "d_ff"),
}
SMALL: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("hidden_size", "dim", "n_embd", "d_model", "pooler_hidden_size"), lambda _: WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), lambda _: 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "n_inner", "d_ff"), lambda _: 64),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), lambda layers: min(layers, 4)),
    **dict.fromkeys(("sliding_window", "local_attention"), lambda _: 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), lambda positions: POSITIONS + positions % 64),
    "max_trained_positions": lambda _: POSITIONS,
    "pad_vocab_size_multiple": lambda _: 1,
    "embedding_size": lambda _: 12,
    "hidden_size_per_layer_input": lambda _: 12,
    "num_labels": lambda _: WIDTH // 2,
    "embedding_dim": lambda _: 24,
    "per_layer_config": lambda _: {"03": {"head_dim": 16, "num_key_value_heads": 1}},
    "head_dim": lambda _: 12,
    "d_kv": lambda _: 10,
    "num_key_value_heads": lambda heads: 1 if heads == 1 else 2,
    "query_pre_attn_scalar": lambda _: 12,
    "max_window_layers": lambda _: 4,
}
ACTIVATIONS = {"identity": "torch.nn.modules.linear.Identity", "tanh": "torch.nn.modules.activation.Tanh"}
ACTIVATIONS |= {"gelu": "torch.nn.modules.activation.GELU"}
CLASS_OF = {
    "SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
    "PyLateDense": "pylate.models.Dense.Dense",
}
CLASSES = {"Model": "AutoModel", "ForMaskedLM": "AutoModelForMaskedLM", "ForCausalLM": "AutoModelForCausalLM"}
CLASSES |= {"ForSequenceClassification": "AutoModelForSequenceClassification", "HF_ColBERT": "AutoModel"}
CLASSES |= {"ForTokenClassification": "AutoModelForTokenClassification"}


@dataclass(frozen=True)
class Published:
    """One row of the table: its id on the hub and its facts, where it says nothing its layout's."""

    id: str
    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A fact, or None."""
        return self.facts.get(name)

    @property
    def config(self) -> dict[str, Any]:
        """config.json at its real size."""
        words = WORDS.get(self["words"] or "", SHAPE)
        labels = self["labels"]
        named = {"id2label": {str(index): label for index, label in enumerate(labels)}} if labels else {}
        shape = dict(zip(words, self["shape"], strict=True))
        return {**self["config"], **shape, "architectures": [self["architecture"]], **named}


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with small sizes; its other settings stay."""
    small: dict[str, Any] = {name: SMALL[name](one) if name in SMALL and one else one for name, one in config.items()}
    for name in [name for name in small if name.endswith("_token_id") and (small[name] or 0) >= VOCABULARY]:
        small[name] = 0
    if "layer_types" in small:
        small["layer_types"] = small["layer_types"][-small["num_hidden_layers"] :]
    return small


@cache
def table() -> tuple[Published, ...]:
    """Every row, with the facts that its layout gives it."""
    data = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    rows = []
    for row in data["model"]:
        base = _with_bases(data["layout"], row["layout"])
        config = {**base.get("config", {}), **row.get("config", {})}
        rows.append(Published(row["id"], {**base, **row, "config": config}))
    return tuple(rows)


def _with_bases(layouts: Mapping[str, Any], name: str) -> dict[str, Any]:
    layout = layouts[name]
    if "like" not in layout:
        return dict(layout)
    base = _with_bases(layouts, layout["like"])
    return {**base, **layout, "config": {**base.get("config", {}), **layout.get("config", {})}}


def build(model: Published, folder: Path) -> Path:
    """Writes the small folder; returns the one that the libraries read: another where its code is the model's own."""
    tokenizer = Tokenizer.from_str(TOKENIZERS[model["tokenizer"]]().to_str())
    return (_write_table if model["layout"] == "table" else _write_network)(model, tokenizer, folder)


def _write_network(model: Published, tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.add_tokens(model["added_tokens"] or [])
    config = {**shrink(model.config), "vocab_size": tokenizer.get_vocab_size()}
    tokenizer.add_tokens(model["tokens_without_row"] or [])
    if model["written_out"]:
        folder.mkdir()
        save_numpy(draw_tensors(config), folder / "model.safetensors")
    else:
        _draw(model, config).save_pretrained(folder)
    if model["inline_dense"]:
        generator = torch.Generator().manual_seed(1)
        dense = {"linear.weight": torch.randn(WIDTH // 2, WIDTH, generator=generator) * 0.3}
        save_file(load_file(folder / "model.safetensors") | dense, folder / "model.safetensors", {"format": "pt"})
    if model["tokenizer_file"] == "vocab.txt":
        (folder / "vocab.txt").write_text(
            "\n".join(sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__))
        )
    else:
        tokenizer.save(str(folder / "tokenizer.json"))
    length = min(model["tokens"], POSITIONS)
    write_json(folder / "tokenizer_config.json", {**model["tokenizer_config"], "model_max_length": length})
    if model["router"]:
        _write_router(folder, model["router"], tokenizer.get_vocab_size())
    elif model["modules"] is not None:
        _write_modules(model, folder)
    prompts = {"prompts": model["prompts"], "default_prompt_name": None} if model["prompts"] else {}
    if around := {**prompts, **(model["around"] or {})}:
        write_json(folder / "config_sentence_transformers.json", around)
    for name, content in (model["files"] or {}).items():
        write_json(folder / name, content)
    library = folder
    if model["library"]:
        library = folder.with_name(f"{folder.name}-library")
        shutil.copytree(folder, library)
        if model["inline_dense"]:  # the architecture tells the library of the dense layer
            said = {**read_json(library / "config.json"), "architectures": [model["architecture"]]}
            write_json(library / "config.json", said)
    kept = {name: value for name, value in config.items() if name not in (model["left_out"] or ())}
    if model["text_part"]:  # of a network that reads more than texts
        kept = {**model["text_part"], "architectures": config["architectures"], "text_config": kept}
    write_json(folder / "config.json", kept)
    _change_weights(model, folder)
    return library


def _change_weights(model: Published, folder: Path) -> None:
    """Weights as they are published: besides the network's, or as a pickle."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if model["text_part"]:
        tensors = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    tensors |= {name: torch.ones(WIDTH) for name in model["extra_tensors"] or ()}
    if model["flash_names"]:
        tensors = _in_flash_names(tensors)
    if model["adapters"]:
        made = {"A": torch.ones, "B": torch.zeros}  # that change nothing: the libraries know the network without any
        tensors = with_adapters(tensors, 5, lambda letter, shape: made[letter](shape))
    for name in model["lora"] or ():  # adapters that change nothing
        query = next(name for name in tensors if name.endswith("0.self_attn.q_proj.weight"))
        outputs, inputs = tensors[query].shape
        parts = {"A": torch.ones(4, inputs), "B": torch.zeros(outputs, 4)}
        write_json(folder / f"adapters/{name}/adapter_config.json", {"peft_type": "LORA", "r": 4, "lora_alpha": 8})
        stored = {f"base_model.model.{query.removesuffix('weight')}lora_{part}.weight": x for part, x in parts.items()}
        save_file(stored, folder / "adapters" / name / "adapter_model.safetensors")
    if model["token_layers"]:
        for name, size in (("sparse", 1), ("colbert", WIDTH)):
            torch.save(torch.nn.Linear(WIDTH, size).state_dict(), folder / f"{name}_linear.pt")
    if model["weights"] == "pickle":
        path.unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, path, {"format": "pt"})


FLASH_NAMES = (  # as Jina's own conversion renames them
    ("encoder.layer.", "encoder.layers."),
    ("embeddings.LayerNorm", "emb_ln"),
    ("attention.output.LayerNorm", "norm1"),
    ("attention.output.dense", "mixer.out_proj"),
    ("output.LayerNorm", "norm2"),
    ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"),
)


def _in_flash_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """XLM-RoBERTa's tensors as Jina's code names them, queries, keys and values in one."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for theirs, new in FLASH_NAMES:
            name = name.replace(theirs, new)  # noqa: PLW2901 - one rule after the other
        renamed[name] = tensor
    for query in [name for name in renamed if ".attention.self.query." in name]:
        parts = [renamed.pop(query.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        renamed[query.replace("attention.self.query", "mixer.Wqkv")] = torch.cat(parts)
    return renamed


def with_adapters(
    tensors: Mapping[str, Tensor], tasks: int, make: Callable[[str, tuple[int, ...]], Tensor]
) -> dict[str, Tensor]:
    """An adapter of rank 4 a task on every matrix, as Jina's code stores them; `make` gives A and B of all tasks."""
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or "pooler" in name:
            stored[name] = tensor
            continue
        module, (outputs, inputs) = f"{name.removesuffix('.weight')}.parametrizations.weight", tensor.shape
        shapes = ((outputs, 4), (4, inputs)) if "embeddings" in name else ((4, inputs), (outputs, 4))
        stored[f"{module}.original"] = tensor
        for letter, shape in zip("AB", shapes, strict=True):
            stored[f"{module}.0.lora_{letter}"] = make(letter, (tasks, *shape))
    return stored


def _draw(model: Published, config: Mapping[str, Any]) -> Any:
    """The network as the library builds it, from config.json or from what the layout says in the library's words."""
    words = WORDS.get(model["words"] or "", SHAPE)
    if model["library"]:
        own = dict(zip(SHAPE, (config[word] for word in words), strict=True))
        unread = {"rope_scaling", "auto_map", *words} - own.keys()
        config = {**{name: value for name, value in config.items() if name not in unread}, **own, **model["library"]}
    auto = model["class"] or next(auto for ending, auto in CLASSES.items() if model["architecture"].endswith(ending))
    unsaid = {"model_type", "architectures", *(model["left_out"] or ())}
    settings = {name: value for name, value in config.items() if name not in unsaid}
    spread = 0.2 if model["spread"] is None else model["spread"]
    return draw(FamilyModel(model.id, config["model_type"], settings, spread=spread, auto=getattr(transformers, auto)))


def _write_modules(model: Published, folder: Path) -> None:
    sizes, is_sparse = [WIDTH], "SpladePooling" in str(model["modules"])
    modules = {"": "sentence_transformers.sparse_encoder.models.MLMTransformer" if is_sparse else "Transformer"}
    for index, module in enumerate(model["modules"], start=1):
        kind, *settings = module.split()
        place = f"{index}_{kind.removeprefix('PyLate')}"
        modules[place] = CLASS_OF.get(kind, kind)
        (folder / place).mkdir()
        if kind == "Pooling":
            write_json(folder / f"{place}/config.json", _pooling(settings[0]))
        elif kind == "SpladePooling":
            write_json(folder / f"{place}/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
        elif kind.endswith("Dense"):
            hidden, size = model["shape"][0], int(settings[0])
            small = size if "scores" in settings else WIDTH // 2 if size < hidden else 2 * WIDTH
            sizes.append(WIDTH if size == hidden else small)
            _write_dense(folder / place, sizes[-2], sizes[-1], settings[1:])
        elif kind == "LayerNorm":
            write_json(folder / f"{place}/config.json", {"dimension": WIDTH})
            tensors = {"norm.weight": torch.linspace(0.5, 2, WIDTH), "norm.bias": torch.linspace(-1, 1, WIDTH)}
            save_file(tensors, folder / place / "model.safetensors")
    write_modules(folder, modules)


def _write_table(model: Published, tokenizer: Tokenizer, folder: Path) -> Path:
    """A table of vectors as sentence-transformers saves it, or, if it is normalised, as model2vec does."""
    is_potion = "Normalize" in model["modules"]
    network = folder / ("" if is_potion else "0_StaticEmbedding")
    network.mkdir(parents=True)
    rows = torch.randn(tokenizer.get_vocab_size(), WIDTH, generator=torch.Generator().manual_seed(1))
    save_file({"embeddings" if is_potion else "embedding.weight": rows}, network / "model.safetensors")
    tokenizer.save(str(network / "tokenizer.json"))
    modules = {"." if is_potion else network.name: "StaticEmbedding"}
    if is_potion:
        modules["1_Normalize"] = "Normalize"
        said = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}
        write_json(folder / "config.json", said)
    return write_modules(folder, modules)


def _write_router(folder: Path, activation: str, vocabulary: int) -> None:
    """Documents by the network, queries by a table that has a weight a word, with a tokenizer of the same files."""
    places = {"query_0_SparseStaticEmbedding": "SparseStaticEmbedding", "": "MLMTransformer"}
    places["document_1_SpladePooling"] = "SpladePooling"
    package = "sentence_transformers.sparse_encoder.models"
    structure = {"query": ["query_0_SparseStaticEmbedding"], "document": ["", "document_1_SpladePooling"]}
    types = {place: f"{package}.{kind}.{kind}" for place, kind in places.items()}
    parameters = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    pooling = {"pooling_strategy": "max", "activation_function": activation, "word_embedding_dimension": None}
    write_json(folder / "document_1_SpladePooling/config.json", pooling)
    write_json(folder / "query_0_SparseStaticEmbedding/config.json", {"frozen": True})
    weights = torch.rand(vocabulary, generator=torch.Generator().manual_seed(1)) * 8
    weights[::5] = 0
    save_file({"weight": weights}, folder / "query_0_SparseStaticEmbedding" / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, folder / "query_0_SparseStaticEmbedding" / name)
    write_modules(folder, {"": "sentence_transformers.models.Router.Router"})


def _pooling(mode: str) -> dict[str, Any]:
    flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
    said = {f"pooling_mode_{flag}": name == mode for name, flag in flags.items()}
    return {"word_embedding_dimension": WIDTH, **said}


def _write_dense(folder: Path, size: int, out: int, settings: Sequence[str]) -> None:
    has_bias, activation = "bias" in settings, next(name for name in settings if name in ACTIVATIONS)
    config: dict[str, Any] = {"in_features": size, "out_features": out, "bias": has_bias}
    config |= {"module_output_name": "scores"} if "scores" in settings else {}
    write_json(folder / "config.json", {**config, "activation_function": ACTIVATIONS[activation]})
    generator = torch.Generator().manual_seed(size)
    tensors = {"linear.weight": torch.randn(out, size, generator=generator) * 0.3}
    save_file(tensors | ({"linear.bias": torch.ones(out) * 0.1} if has_bias else {}), folder / "model.safetensors")
