"""Small randomly initialised networks of every task: a folder that sentence-transformers reads, and its artifact.

The graphs are whole but for their verification, which looks at one batch here: what these networks compute is compared
with their originals in the tests of `export`, and tests of the service want them in seconds.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx_ir
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders

from export.checkpoint import read_checkpoint
from export.explain import share_weights
from export.exporter import export_artifact
from export.openvino import plain_graph
from export.sources import Folder
from export.verify import Case
from model.artifact import GRAPH, OPENVINO, PLAIN_GRAPH, Artifact, describe_files, write_manifest
from model.config_parts import Precision, Task
from tests.disk_cache import kept
from tests.export.conftest import write_json, write_modules
from tests.tokenizers import VOCABULARY, wordpiece

SOURCES = ("task_artifacts.py", "tokenizers.py", "family_models.py", "yes_no.py")
LONGEST = 64
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": LONGEST,
    "type_vocab_size": 2,
    "initializer_range": 0.3,
}
TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "model_max_length": LONGEST,
    "do_lower_case": True,
    **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
}
MODULES = "sentence_transformers.base.modules"
TRANSFORMER = f"{MODULES}.transformer.Transformer"
TOKEN_VECTORS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
TOKEN_SIZE = 16
ONE_LAYER = {"num_hidden_layers": 1}  # where no test looks at the layers


@dataclass(frozen=True)
class TaskArtifact:
    """The original, as `transformers` and sentence-transformers read it, and what the exporter made of it."""

    folder: Path
    artifact: Path


def kept_artifact(name: str, make: Callable[..., TaskArtifact], **settings: Any) -> TaskArtifact:
    """What `make` makes, from this run or from one before it. Nobody may change it."""
    sources = [(Path(__file__).with_name(file)).read_bytes() for file in SOURCES]
    parameters = (sources, settings, version("transformers"))
    path = kept(name, parameters, lambda directory: make(directory, **settings))
    return TaskArtifact(path / "folder", path / "artifact")


def make_embedder(directory: Path, precision: Precision = "fp32") -> TaskArtifact:
    """One vector a text: the mean, normalised. SentenceTransformer reads the folder."""
    from transformers import AutoModel  # noqa: PLC0415 - seconds to import

    folder = _save(directory, AutoModel)
    write_json(folder / "1_Pooling/config.json", {"pooling_mode": "mean", "embedding_dimension": SIZES["hidden_size"]})
    write_modules(folder, {"": TRANSFORMER, "1_Pooling": "Pooling", "2_Normalize": "Normalize"})
    return export_folder(folder, directory, precision)


def make_classifier(
    directory: Path, labels: tuple[str, ...], precision: Precision = "fp32", *, explains: bool = True
) -> TaskArtifact:
    """BERT with these labels; with one it is a reranker. CrossEncoder reads the folder."""
    from transformers import AutoModelForSequenceClassification  # noqa: PLC0415 - seconds to import

    folder = _save(directory, AutoModelForSequenceClassification, **_named(labels))
    return export_folder(folder, directory, precision, explains=explains)


def make_token_classifier(directory: Path, labels: tuple[str, ...], precision: Precision = "fp32") -> TaskArtifact:
    """BERT with a label a token. The pipeline of `transformers` reads the folder."""
    from transformers import AutoModelForTokenClassification  # noqa: PLC0415 - seconds to import

    folder = _save(directory, AutoModelForTokenClassification, **ONE_LAYER, **_named(labels))
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    tokenizer.decoder = decoders.WordPiece()  # which `transformers` gives BERT's tokenizer in any case
    tokenizer.save(str(folder / "tokenizer.json"))
    return export_folder(folder, directory, precision)


def make_sparse(directory: Path, precision: Precision = "fp32") -> TaskArtifact:
    """SPLADE on a masked language model. SparseEncoder reads the folder."""
    from transformers import AutoModelForMaskedLM  # noqa: PLC0415 - seconds to import

    folder = _save(directory, AutoModelForMaskedLM, **ONE_LAYER)
    return export_folder(write_sparse(folder, pooling_strategy="max", activation_function="relu"), directory, precision)


def write_sparse(folder: Path, **pooling: Any) -> Path:
    """What sentence-transformers saves around the network of a SparseEncoder."""
    write_json(folder / "1_SpladePooling/config.json", pooling)
    kind = "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"
    write_modules(folder, {"": TRANSFORMER, "1_SpladePooling": kind})
    write_json(folder / "sentence_bert_config.json", _transformer("fill-mask", "logits"))
    return write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})


def make_multi_vector(directory: Path, precision: Precision = "fp32", expansion: int = 0) -> TaskArtifact:
    """ColBERT: 16 numbers a token, full stops not counted in documents. MultiVectorEncoder reads the folder.

    With an `expansion` queries have prompts and this many tokens, of which no one sees the last ones.
    """
    from transformers import AutoModel  # noqa: PLC0415 - seconds to import

    folder = _save(directory, AutoModel, **ONE_LAYER)
    dense = {"in_features": SIZES["hidden_size"], "out_features": TOKEN_SIZE, "bias": False, **TOKEN_VECTORS}
    write_json(folder / "1_Dense/config.json", {**dense, "activation_function": "torch.nn.modules.linear.Identity"})
    weight = torch.randn(TOKEN_SIZE, SIZES["hidden_size"], generator=torch.Generator().manual_seed(1))
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    write_json(folder / "2_MultiVectorMask/config.json", {"skiplist_words": ["."], "skiplist_tasks": ["document"]})
    write_json(folder / "3_Normalize/config.json", TOKEN_VECTORS)
    mask = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    modules = {"1_Dense": f"{MODULES}.dense.Dense", "2_MultiVectorMask": mask}
    write_modules(folder, {"": TRANSFORMER, **modules, "3_Normalize": f"{MODULES}.normalize.Normalize"})
    settings = _transformer("feature-extraction", "last_hidden_state")
    prompts = {"query": "", "document": ""}
    if expansion:
        settings |= {"query_expansion": {"strategy": "fixed", "length": expansion}, "document_length": 2 * expansion}
        prompts = {"query": "who: ", "document": "what: "}
    write_json(folder / "sentence_bert_config.json", settings)
    around = {"model_type": "MultiVectorEncoder", "prompts": prompts}
    write_json(folder / "config_sentence_transformers.json", around)
    return export_folder(folder, directory, precision)


def _save(directory: Path, auto: Any, **settings: Any) -> Path:
    """The randomly initialised network and its tokenizer, as `transformers` saves them."""
    from transformers import AutoConfig  # noqa: PLC0415 - seconds to import

    torch.manual_seed(0)
    folder = directory / "folder"
    auto.from_config(AutoConfig.for_model("bert", **{**SIZES, **settings})).save_pretrained(folder)
    wordpiece().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", TOKENIZER)
    return folder


def _named(labels: tuple[str, ...]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}


def _transformer(task: str, output: str) -> dict[str, Any]:
    modality = {"text": {"method": "forward", "method_output_name": output}}
    return {"transformer_task": task, "modality_config": modality, "module_output_name": "token_embeddings"}


def export_folder(
    folder: Path, directory: Path, precision: Precision = "fp32", *, task: Task | None = None, explains: bool = True
) -> TaskArtifact:
    """The folder with the artifact made from it; `task` and `explains` as the exporter takes them."""
    checkpoint = read_checkpoint(Folder(folder, folder.name), name="drawn", task=task)
    with quick_export():
        export_artifact(checkpoint, directory / "artifact", precision=precision, explains=explains)
    return TaskArtifact(folder, directory / "artifact")


@contextmanager
def quick_export() -> Iterator[None]:
    """Verifies one batch alone, and compares with no original: for tests that look at the answers themselves."""
    one = patch("export.verify.grid", lambda config: [Case((7, 3), 7, tuple(range(config.num_layers))[:2])])
    with one, patch("export.original.is_installed", lambda: False):
        yield


def for_openvino(source: Path, directory: Path, precision: Precision = "fp32") -> Artifact:
    """An artifact with the graph for OpenVINO too, as the exporter adds it."""
    shutil.copytree(source, directory)
    manifest = Artifact.open(source).manifest
    graph = plain_graph(directory / GRAPH, manifest.config)
    share_weights(graph, [directory / GRAPH])
    onnx_ir.save(graph, directory / PLAIN_GRAPH)
    write_manifest(directory, replace(manifest, engine=OPENVINO, precision=precision, files=describe_files(directory)))
    return Artifact.open(directory)
