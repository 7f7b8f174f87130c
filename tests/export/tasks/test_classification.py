"""Which task a checkpoint is for, and classifiers of texts and of tokens against `transformers` and CrossEncoder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling, Transformer
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, PreTrainedModel

from export.checkpoint import require_embedding
from export.errors import ExportError, UnsupportedModel
from export.original import compare_with_original
from export.pipeline import find_task
from export.tasks.classification import read_labels
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, MultiVectorSettings, Projection, SparseSettings
from model.encoder import Encoder
from tests.export.conftest import change_json, write_json, write_modules
from tests.family_models import (
    MODELS,
    NAMED,
    FamilyModel,
    Pair,
    draw,
    ids_and_types,
    mask_of,
    read,
    run_ours,
    run_theirs,
    save,
)
from tests.networks import TINY, draw_weights
from tests.task_artifacts import TRANSFORMER
from tests.tokenizers import TOKENIZERS


@pytest.fixture
def cross_encoder(tmp_path: Path) -> Path:
    model = NAMED["bert"]
    return save(draw(model, auto=AutoModelForSequenceClassification, num_labels=1), model, tmp_path / "folder")


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
    config = read(cross_encoder, task="embedding").encoder.config
    assert (config.task, config.pooling) == ("embedding", "mean")
    with pytest.raises(UnsupportedModel, match="folder is for task classification, and the cost of .* by embeddings"):
        require_embedding(checkpoint, "the cost of removed heads is measured")


GELU, IDENTITY = nn.GELU(), nn.Identity()


def save_modules(folder: Path, pooling: str, *behind: nn.Module) -> Path:
    """A CrossEncoder of BERT, and modules behind it, as the original saves it in place of the folder."""
    network = Transformer(str(folder))
    modules = [network, Pooling(32, pooling_mode=pooling), *behind]
    for parameter in (parameter for module in behind for parameter in module.parameters()):
        nn.init.normal_(parameter, 0.1, 0.3)
    CrossEncoder(modules=modules, device="cpu", activation_fn=IDENTITY).save_pretrained(str(folder))
    return folder


def scores(size: int, activation: nn.Module = IDENTITY) -> Dense:
    return Dense(32, size, activation_function=activation, module_output_name="scores")


@pytest.mark.parametrize(
    ("pooling", "behind", "labels"),
    [
        ("cls", [Dense(32, 32, bias=False, activation_function=GELU), LayerNorm(32), scores(1)], 1),
        ("mean", [Dense(32, 32, activation_function=nn.ReLU()), scores(3)], 3),
        ("max", [scores(2)], 2),
    ],
    ids=["norm", "two", "one"],
)
def test_a_cross_encoder_of_modules_is_the_originals(
    bert_folder: Path, pooling: str, behind: list[nn.Module], labels: int
) -> None:
    folder = save_modules(bert_folder, pooling, *behind)
    checkpoint = read(folder)
    settings = checkpoint.encoder.config.task_settings
    assert isinstance(settings, ClassificationSettings)
    assert (len(settings.labels), settings.activation, checkpoint.pairs) == (labels, "identity", True)
    compared = compare_with_original(checkpoint, folder)
    assert compared["compared"]
    assert compared["logits"] < 1e-5


@pytest.mark.parametrize(
    ("behind", "message"),
    [
        ([scores(1, nn.Sigmoid())], "Sigmoid is not supported"),
        ([scores(1, GELU)], "the last one has no activation"),
        ([Dense(32, 48), Dense(48, 1, activation_function=IDENTITY, module_output_name="scores")], "network's width"),
        ([LayerNorm(32), scores(1)], "lists Transformer, Pooling, LayerNorm, Dense: a classifier has the modules Tra"),
        ([Dense(32, 1, activation_function=IDENTITY)], "a dense layer on anything but the pooled vector"),
    ],
    ids=["activation", "gelu", "width", "order", "features"],
)
def test_modules_of_a_cross_encoder_that_are_not_reproduced_are_refused(
    bert_folder: Path, behind: list[nn.Module], message: str
) -> None:
    folder = save_modules(bert_folder, "cls", *behind)
    with pytest.raises(UnsupportedModel, match=message):
        read(folder)


def test_without_an_architecture_the_weights_tell(cross_encoder: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"holds? classifier\.bias, which no embedding uses: say --task class"):
        read(change_json(cross_encoder / "config.json", architectures=None))
    with pytest.raises(UnsupportedModel, match="architecture BertModel, and its weights hold classifier.bias"):
        read(change_json(cross_encoder / "config.json", architectures=["BertModel"]))
    change_json(cross_encoder / "config.json", architectures=None, id2label={"0": "score"})
    found = read(cross_encoder, task="classification").encoder.config.task_settings
    assert getattr(found, "labels", None) == ("score",)


def test_the_score_of_a_language_model_tells_too(tmp_path: Path) -> None:
    folder = save(draw(NAMED["qwen3"], auto=AutoModelForSequenceClassification), NAMED["qwen3"], tmp_path)
    change_json(folder / "config.json", architectures=None)
    with pytest.raises(UnsupportedModel, match=r"hold score\.weight, which no embedding uses"):
        read(folder)


def test_a_task_that_is_none_of_ours_is_refused(bert_folder: Path) -> None:
    change_json(bert_folder / "config.json", architectures=["BertForQuestionAnswering"])
    message = "BertForQuestionAnswering, which is for none of the tasks embedding, classification, token_class"
    with pytest.raises(UnsupportedModel, match=message):
        read(bert_folder)
    assert read(bert_folder, task="embedding").encoder.config.task == "embedding"


@pytest.mark.parametrize(
    "pooler", [{}, {"pooler.dense.weight": torch.ones(32, 32), "pooler.dense.bias": torch.ones(32)}]
)
def test_a_task_without_its_layers_is_refused(bert_folder: Path, pooler: dict[str, torch.Tensor]) -> None:
    change_json(bert_folder / "config.json", architectures=["BertModel"])
    weights = bert_folder / "model.safetensors"
    save_file(load_file(weights) | pooler, weights)
    with pytest.raises(UnsupportedModel, match="no layers for task classification: expected pooler.dense, classifier"):
        read(bert_folder, task="classification")
    with pytest.raises(UnsupportedModel, match="task multi_vector needs a Dense module on tokens"):
        read(bert_folder, task="multi_vector")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"modules.json": [TRANSFORMER, "sentence_transformers.x.Dense"]},
            "Transformer, Dense: a classifier has the m",
        ),
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


def save_own(encoder: Encoder, tokenizer: Tokenizer, folder: Path) -> Path:
    write_json(folder / "config.json", {"model_type": "polyhead", **encoder.config.to_dict()})
    save_file(encoder.state_dict(), folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.task)
def test_a_network_with_a_task_is_read_as_saved(config: EncoderConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = draw_weights(Encoder(config))
    found = read(save_own(encoder, tokenizer, tmp_path)).encoder
    assert found.config == config
    ids, lengths = torch.arange(16).reshape(2, 8), torch.tensor([8, 3])
    pair = found(ids, lengths).task_output, encoder(ids, lengths).task_output
    torch.testing.assert_close(*pair, atol=1e-6, rtol=0)


def test_it_is_not_exported_as_another_task_nor_with_fields_of_another_version(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = save_own(draw_weights(Encoder(CONFIGS[1])), tokenizer, tmp_path)
    with pytest.raises(UnsupportedModel, match="says task classification: it cannot be exported as embedding"):
        read(folder, task="embedding")
    with pytest.raises(UnsupportedModel, match="unknown fields surprise"):
        read(change_json(folder / "config.json", surprise=1))


TOLERANCE = 1e-5
NAMES = (
    *("bert", "roberta", "roberta-with-types", "xlm-roberta", "camembert", "distilbert", "electra", "electra-as-wide"),
    *("mpnet", "modernbert", "modernbert-with-biases", "nomic", "gte", "deberta", "qwen3", "eurobert", "albert"),
)
BY_MEAN = {"eurobert", "modernbert-with-biases"}
BATCHES = [[7], [1], [5, 2, 1], [3, 9, 4]]
TOKENS = [model for model in MODELS if not model.name.startswith("gemma")]  # which have no such class


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model = NAMED[request.param]
    pooling: dict[str, Any] = {"classifier_pooling": "mean"} if model.name in BY_MEAN else {}
    theirs = draw(model, auto=AutoModelForSequenceClassification, num_labels=3, **pooling)
    return model, theirs, read(save(theirs, model, tmp_path_factory.mktemp(model.name))).encoder


def compare(model: FamilyModel, theirs: PreTrainedModel, ours: Encoder, lengths: list[int]) -> None:
    ids, types = ids_and_types(model, len(lengths), max(lengths) + 2)
    expected = run_theirs(theirs, ids, types, lengths).logits
    found = run_ours(ours, ids, types, lengths).task_output
    if found.ndim > 2:
        is_token = mask_of(ids, lengths) == 1
        found, expected = found[is_token], expected[is_token]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_logits_equal_transformers(pair: Pair) -> None:
    for lengths in BATCHES:
        compare(*pair, lengths)
    config = pair[2].config
    assert isinstance(config.task_settings, ClassificationSettings)
    assert config.task == "classification"
    assert config.task_settings.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert (config.task_settings.activation, config.output_size) == ("softmax", 3)


@pytest.mark.parametrize(("tokenizer", "longest"), [("qwen", 30), ("qwen", 1000), ("qwen-chat", 30)])
def test_a_decoder_scores_pairs_as_cross_encoder_does(tokenizer: str, longest: int, tmp_path: Path) -> None:
    """One tokenizer ends texts with the padding token, which the original skips; the other adds nothing to a pair."""
    model = replace(NAMED["qwen3"], tokenizer=tokenizer)
    sizes = {"vocab_size": TOKENIZERS[tokenizer]().get_vocab_size(), "pad_token_id": 0}
    folder = save(draw(model, auto=AutoModelForSequenceClassification, num_labels=1, **sizes), model, tmp_path)
    words = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>", "model_max_length": longest}
    write_json(folder / "tokenizer_config.json", words)
    ours = read(folder)
    assert compare_with_original(ours, folder)["logits"] < TOLERANCE
    assert ours.pairs
    ours.tokenizer.enable_truncation(ours.max_sequence_length)
    pairs = [("where is the cat", "The cat sat on the mat."), ("a", "b"), ("a b " * 20, "c " * 20)]
    rows = [torch.tensor([ours.tokenizer.encode(*pair).ids]) for pair in pairs]
    found = [ours.encoder(row, torch.tensor([row.shape[1]])).task_output[0].tolist() for row in rows]
    expected = [
        CrossEncoder(str(folder), device="cpu").predict([pair], activation_fn=torch.nn.Identity()) for pair in pairs
    ]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("model", TOKENS, ids=lambda model: model.name)
def test_labels_of_tokens_equal_transformers(model: FamilyModel, tmp_path: Path) -> None:
    theirs = draw(model, auto=AutoModelForTokenClassification, num_labels=3)
    ours = read(save(theirs, model, tmp_path)).encoder
    assert (ours.config.task, ours.config.output_size) == ("token_classification", 3)
    compare(model, theirs, ours, [5, 2, 1])


def test_a_family_without_labels_of_tokens_is_refused(tmp_path: Path) -> None:
    model = NAMED["gemma3"]
    save(draw(model), model, tmp_path)
    with pytest.raises(UnsupportedModel, match="token_classification is not supported for networks of .*gemma3_text"):
        read(change_json(tmp_path / "config.json", architectures=["Gemma3ForTokenClassification"]))


def test_gte_in_the_words_of_its_own_code(tmp_path: Path) -> None:
    model = NAMED["gte"]
    theirs = draw(model, auto=AutoModelForSequenceClassification, num_labels=2)
    save(theirs, model, tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({name.replace("gte.", "new.", 1): tensor for name, tensor in load_file(path).items()}, path)
    code = "NewForSequenceClassification"
    named = {"AutoModelForSequenceClassification": f"Alibaba-NLP/new-impl--modeling.{code}"}
    config = {"model_type": "new", "architectures": [code], "auto_map": named}
    compare(model, theirs, read(change_json(tmp_path / "config.json", **config)).encoder, [5, 2, 1])


@pytest.mark.parametrize(
    ("change", "activation"),
    [
        ({}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"version": "4.0"}, "problem_type": "regression"}, "sigmoid"),
    ],
)
def test_reads_what_makes_scores_of_logits(cross_encoder: Path, change: dict[str, Any], activation: str) -> None:
    settings = read(change_json(cross_encoder / "config.json", **change)).encoder.config.task_settings
    assert getattr(settings, "activation", None) == activation
    around = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    write_modules(cross_encoder, {"": "Transformer"})
    write_json(cross_encoder / "config_sentence_transformers.json", around)
    settings = read(cross_encoder).encoder.config.task_settings
    assert getattr(settings, "activation", None) == "identity"  # what sentence-transformers writes now counts first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentence_transformers": {"activation_fn": "mine.Sigmoid"}}, "mine.Sigmoid is not supported: Sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.GELU"}}, "torch.nn.GELU is not supported"),
        ({"problem_type": "ranking"}, "problem_type 'ranking': one of single_label"),
        ({"id2label": {"1": "a"}}, "id2label is .*: expected a name for each of 0 to the last label"),
        ({"id2label": {"0": "a", "1": "b"}}, "task_layers.output.bias: expected \\(2,\\), found \\(1,\\)"),
        ({"id2label": {"0": "a", "1": "a"}}, "expected names that differ"),
    ],
)
def test_refuses_what_it_would_not_reproduce(cross_encoder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(change_json(cross_encoder / "config.json", **change))


def test_labels_that_nobody_named_are_two() -> None:
    assert read_labels({}) == ("LABEL_0", "LABEL_1")
    assert read_labels({"num_labels": 1}) == ("LABEL_0",)


def test_heads_of_nomics_own_code_are_refused(tmp_path: Path) -> None:
    model = NAMED["nomic"]
    made = save(draw(model, auto=AutoModelForSequenceClassification, num_labels=2), model, tmp_path)
    described = json.loads((made / "config.json").read_text())
    own = {"n_embd": described["hidden_size"], "n_head": 4, "n_layer": 3, "n_inner": 64, "layer_norm_epsilon": 1e-12}
    rest = {"rotary_emb_fraction": 1, "rotary_emb_base": 1000, "activation_function": "swiglu", "n_positions": 64}
    biases = dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False)
    with pytest.raises(UnsupportedModel, match="is not supported for the own code of nomic_bert.* does not say n_embd"):
        read(change_json(made / "config.json", **own, **rest, **biases))
