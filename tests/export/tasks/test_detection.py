"""Which task a checkpoint is for, and that none is exported as another unasked: published ones, and our own shapes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from export.checkpoint import Checkpoint, read_checkpoint, require_embedding
from export.errors import ExportError, UnsupportedModel
from export.pipeline import find_task
from export.sources import Folder
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, MultiVectorSettings, Projection, SparseSettings, Task
from model.encoder import Encoder
from tests.export.conftest import change_json, write_json
from tests.family_models import NAMED, draw, save
from tests.networks import BERT_CONFIG, TINY, draw_weights

TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"


def read(folder: Path, task: Task | None = None) -> Checkpoint:
    return read_checkpoint(Folder(folder, "mine"), task=task)


def describe(folder: Path, **change: Any) -> Path:
    return write_json(folder / "config.json", {**BERT_CONFIG, **change})


@pytest.fixture
def cross_encoder(bert_folder: Path) -> Path:
    """BERT with a pooler and one label, as `transformers` saves it."""
    path = bert_folder / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(path).items()}
    tensors |= {"bert.pooler.dense.weight": torch.ones(32, 32), "bert.pooler.dense.bias": torch.ones(32)}
    save_file({**tensors, "classifier.weight": torch.ones(1, 32), "classifier.bias": torch.ones(1)}, path)
    return describe(bert_folder, architectures=["BertForSequenceClassification"], id2label={"0": "LABEL_0"})


@pytest.mark.parametrize(
    ("kinds", "architectures", "expected"),
    [
        (["Transformer", "Pooling", "Normalize"], ["BertForSequenceClassification"], "embedding"),
        (["Transformer"], ["BertForSequenceClassification"], "classification"),
        ([], ["RobertaForSequenceClassification"], "classification"),
        (["Transformer", "SpladePooling"], ["BertForMaskedLM"], "sparse"),
        (["MLMTransformer", "SpladePooling"], ["BertForMaskedLM"], "sparse"),
        (["Transformer", "Dense", "MultiVectorMask", "Normalize"], ["BertModel"], "multi_vector"),
        ([], ["BertForMaskedLM"], "embedding"),
        ([], ["ElectraForPreTraining"], "embedding"),
        ([], ["MPNetModel"], "embedding"),
        ([], None, "embedding"),
        ([], ["BertForTokenClassification"], "token_classification"),
        ([], ["BertForQuestionAnswering"], None),
        ([], ["HF_ColBERT"], "multi_vector"),
    ],
)
def test_the_task_is_read(kinds: list[str], architectures: list[str] | None, expected: str | None) -> None:
    assert find_task(kinds, {"architectures": architectures}, Path("folder")).task == expected


def test_a_cross_encoder_is_an_embedder_only_where_that_is_asked_for(cross_encoder: Path) -> None:
    checkpoint = read(cross_encoder)
    assert (checkpoint.encoder.config.task, checkpoint.pairs) == ("classification", True)
    config = read(cross_encoder, "embedding").encoder.config
    assert (config.task, config.pooling) == ("embedding", "mean")
    with pytest.raises(UnsupportedModel, match="mine is for task classification, and the cost of .* by embeddings"):
        require_embedding(checkpoint, "the cost of removed heads is measured")


def test_without_an_architecture_the_weights_tell(cross_encoder: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"holds? classifier\.bias, which no embedding uses: say --task class"):
        read(describe(cross_encoder))
    with pytest.raises(UnsupportedModel, match="architecture BertModel, and its weights hold classifier.bias"):
        read(describe(cross_encoder, architectures=["BertModel"]))
    found = read(describe(cross_encoder, id2label={"0": "score"}), "classification").encoder.config.task_settings
    assert getattr(found, "labels", None) == ("score",)


def test_the_score_of_a_language_model_tells_too(tmp_path: Path) -> None:
    folder = save(draw(NAMED["qwen3"], auto=AutoModelForSequenceClassification), NAMED["qwen3"], tmp_path)
    change_json(folder / "config.json", architectures=None)
    with pytest.raises(UnsupportedModel, match=r"hold score\.weight, which no embedding uses"):
        read(folder)


def test_a_task_that_is_none_of_ours_is_refused(bert_folder: Path) -> None:
    describe(bert_folder, architectures=["BertForQuestionAnswering"])
    message = "BertForQuestionAnswering, which is for none of the tasks embedding, classification, token_class"
    with pytest.raises(UnsupportedModel, match=message):
        read(bert_folder)
    assert read(bert_folder, "embedding").encoder.config.task == "embedding"


def test_a_task_without_its_layers_is_refused(bert_folder: Path) -> None:
    describe(bert_folder, architectures=["BertModel"])
    with pytest.raises(UnsupportedModel, match="no layers for task classification: expected pooler.dense, classifier"):
        read(bert_folder, "classification")
    with pytest.raises(UnsupportedModel, match="task multi_vector needs a Dense module on tokens"):
        read(bert_folder, "multi_vector")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": [TRANSFORMER, "sentence_transformers.x.Dense"]}, "module Dense is not supported for task c"),
        ({"config_sentence_transformers.json": {"model_type": "SentenceTransformer"}}, "model_type 'SentenceTransform"),
        ({"sentence_bert_config.json": {"transformer_task": "fill-mask"}}, "transformer_task 'fill-mask'"),
    ],
)
def test_modules_that_contradict_the_task_are_refused(cross_encoder: Path, files: dict[str, Any], message: str) -> None:
    settings = {"transformer_task": "sequence-classification"}
    modules = files.pop("modules.json", [TRANSFORMER])
    entries = [{"type": kind, "path": "" if place == 0 else str(place)} for place, kind in enumerate(modules)]
    around = {"modules.json": entries, "sentence_bert_config.json": settings}
    around["config_sentence_transformers.json"] = {"model_type": "CrossEncoder"}
    for name, content in {**around, **files}.items():
        write_json(cross_encoder / name, content)
    with pytest.raises(ExportError, match=message):
        read(cross_encoder)


CONFIGS: list[EncoderConfig] = [
    replace(TINY, projections=(Projection(size=5),)),
    replace(TINY, task="classification", task_settings=ClassificationSettings(labels=("score",)), pooling="mean"),
    replace(TINY, task="sparse", task_settings=SparseSettings(tied=False, bias=False)),
    replace(TINY, task="multi_vector", task_settings=MultiVectorSettings(size=7, bias=True)),
]


def save_own(encoder: Encoder, tokenizer: Tokenizer, folder: Path) -> Folder:
    write_json(folder / "config.json", {"model_type": "polyhead", **encoder.config.to_dict()})
    save_file(encoder.state_dict(), folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Folder(folder, "own")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.task)
def test_a_network_with_a_task_is_read_as_saved(config: EncoderConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(config))
    found = read_checkpoint(save_own(encoder, tokenizer, tmp_path)).encoder
    assert found.config == config
    ids, lengths = torch.arange(16).reshape(2, 8), torch.tensor([8, 3])
    pair = found(ids, lengths).task_output, encoder(ids, lengths).task_output
    torch.testing.assert_close(*pair, atol=1e-6, rtol=0)


def test_it_is_not_exported_as_another_task(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_own(draw_weights(Encoder(CONFIGS[1])), tokenizer, tmp_path)
    with pytest.raises(UnsupportedModel, match="says task classification: it cannot be exported as embedding"):
        read_checkpoint(folder, task="embedding")
