from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from export.errors import ExportError, SourceError, UnsupportedModel
from export.pipeline import read_pipeline
from export.sources import read_json
from model.config_parts import Projection
from tests.export.conftest import change_json, write_json
from tests.family_models import read

TRANSFORMER = {"name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZE = {"path": "3_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"}
DROPOUT = {"path": "4_Dropout", "type": "sentence_transformers.models.Dropout"}
TANH = "torch.nn.modules.activation.Tanh"


PLAIN = [TRANSFORMER, POOLING]


def sentence_transformer(folder: Path, modules: list[dict[str, Any]] = PLAIN, pooling: Any = None) -> Path:
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling/config.json", pooling or {"pooling_mode_mean_tokens": True})
    return folder


def dense(folder: Path, **change: object) -> None:
    write_json(folder / "2_Dense/config.json", {"in_features": 4, "bias": True, "activation_function": TANH})
    change_json(folder / "2_Dense/config.json", **{"out_features": 3, **change})
    tensors = {"linear.weight": torch.ones(3, 4), "linear.bias": torch.zeros(3)}
    save_file(tensors, folder / "2_Dense" / "model.safetensors")


def test_reads_every_module(tmp_path: Path) -> None:
    modules = [TRANSFORMER, POOLING, DROPOUT, DENSE, NORMALIZE, NORMALIZE]  # trained twice, each time with a last one
    sentence_transformer(tmp_path, modules, {"pooling_mode_cls_token": True})
    dense(tmp_path)
    text = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    kept = {"transformer_task": "feature-extraction", "modality_config": text, "module_output_name": "token_embeddings"}
    harmless = {"model_args": {"torch_dtype": "float16"}, "config_args": {"trust_remote_code": True}}
    settings = {"max_seq_length": 77, "do_lower_case": True, "processing_kwargs": None, **kept, **harmless}
    write_json(tmp_path / "sentence_bert_config.json", settings)
    prompts = {"prompts": {"query": "query: ", "none": None}, "default_prompt_name": "query"}
    write_json(tmp_path / "config_sentence_transformers.json", prompts)
    pipeline = read_pipeline(tmp_path)
    assert pipeline.pooling == "cls"
    assert pipeline.normalize
    (layer,) = pipeline.dense
    assert layer.settings == Projection(size=3, bias=True, activation="tanh")
    assert set(layer.state) == {"weight", "bias"}
    assert (pipeline.max_sequence_length, pipeline.do_lower_case) == (77, True)
    assert (pipeline.prompts, pipeline.default_prompt_name) == ({"query": "query: "}, "query")


def test_without_modules_only_the_tokenizers_length_counts(bert_folder: Path) -> None:
    write_json(bert_folder / "tokenizer_config.json", {"model_max_length": 32, "tokenizer_class": "BertTokenizer"})
    write_json(bert_folder / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": True})
    write_json(bert_folder / "config_sentence_transformers.json", {"prompts": {"query": "the cat"}, "truncate_dim": 4})
    theirs, ours = SentenceTransformer(str(bert_folder), device="cpu"), read_pipeline(bert_folder)
    assert ours.max_sequence_length == theirs.max_seq_length == 32
    assert not ours.do_lower_case
    assert not theirs[0].do_lower_case
    assert (ours.prompts, any(theirs.prompts.values()), theirs.truncate_dim) == ({}, False, None)
    sentence_transformer(bert_folder, PLAIN, {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    write_json(bert_folder / "config_sentence_transformers.json", {"prompts": {"query": "the cat"}})
    theirs, ours = SentenceTransformer(str(bert_folder), device="cpu"), read_pipeline(bert_folder)
    assert ours.max_sequence_length == theirs.max_seq_length == 9
    assert ours.prompts["query"] == theirs.prompts["query"]


@pytest.mark.parametrize(
    ("modules", "named", "asked", "expected"),
    [
        (PLAIN, None, None, (True, "cosine")),
        (PLAIN, "cosine", None, (True, "cosine")),
        (PLAIN, "dot", None, (False, "dot")),
        (PLAIN, "dot", True, (True, "dot")),
        (PLAIN, None, False, (False, "dot")),
        (PLAIN, "manhattan", True, (True, "cosine")),
        (PLAIN, "manhattan", None, "similarity_fn_name 'manhattan': cosine, dot are supported"),
        ([*PLAIN, NORMALIZE], "dot", None, (True, "dot")),
        ([*PLAIN, NORMALIZE], None, False, "the checkpoint normalises its vectors itself"),
    ],
)
def test_whether_vectors_are_answered_at_length_1(
    bert_folder: Path, modules: list[Any], named: str | None, asked: bool | None, expected: Any
) -> None:
    sentence_transformer(bert_folder, modules)
    write_json(bert_folder / "config_sentence_transformers.json", {"similarity_fn_name": named})
    if isinstance(expected, str):
        with pytest.raises(UnsupportedModel, match=expected):
            read(bert_folder, normalize=asked)
        return
    defaults = read(bert_folder, normalize=asked).defaults
    assert (defaults.unit_length, defaults.similarity) == expected


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"embedding_dimension": 4}, "mean"),
    ],
)
def test_reads_pooling_of_old_and_new_releases(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    assert read_pipeline(sentence_transformer(tmp_path, [TRANSFORMER, POOLING], pooling)).pooling == expected


OTHER = {"path": "x", "type": "sentence_transformers.models.LayerNorm"}
LAYERED = [TRANSFORMER, POOLING, DENSE]
Change = dict[str, Any]
WRONG: list[tuple[list[dict[str, Any]], Change, Change, str]] = [  # modules, settings of pooling and of the dense layer
    (PLAIN, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, {}, "pooling cls.mean is not supp"),
    (PLAIN, {"pooling_mode": "weightedmean"}, {}, "pooling weightedmean is not supported"),
    (PLAIN, {"pooling_mode": "mean", "include_prompt": False}, {}, "leaves out the prompt"),
    ([POOLING, TRANSFORMER], {}, {}, "expected Transformer, Pooling"),
    ([*PLAIN, OTHER], {}, {}, "module LayerNorm is not supported"),
    ([*PLAIN, POOLING], {}, {}, "several modules Pooling"),
    ([*PLAIN, NORMALIZE, DENSE], {}, {}, "Dense layer after Normalize"),
    ([{"path": "", "type": "custom_st.Transformer"}, POOLING], {}, {}, "names custom_st.Transformer: a module with"),
    ([{"path": ""}], {}, {}, "is malformed"),
    ([TRANSFORMER, {**POOLING, "path": 1}], {}, {}, "is malformed"),
    ([TRANSFORMER, {**POOLING, "path": "../x"}], {}, {}, r"names \.\./x, which is outside the folder"),
    ([{**TRANSFORMER, "path": "/tmp"}, POOLING], {}, {}, "names /tmp, which is outside the folder"),  # noqa: S108 - a name
    (LAYERED, {}, {"activation_function": "torch.nn.Softplus"}, "torch.nn.Softplus is not supported: Tanh"),
    (LAYERED, {}, {"activation_function": "mine.Identity"}, "mine.Identity is not supported"),
    (LAYERED, {}, {"use_residual": True}, "with a residual"),
    (LAYERED, {}, {"out_features": None}, "2_Dense is malformed: KeyError"),
    (LAYERED, {}, {"module_input_name": "token_embeddings"}, "anything but the pooled vector"),
]


@pytest.mark.parametrize(("modules", "pooling", "layer", "message"), WRONG)
def test_refuses_modules_it_would_not_reproduce(
    tmp_path: Path, modules: list[dict[str, Any]], pooling: Change, layer: Change, message: str
) -> None:
    dense(tmp_path, **layer)
    with pytest.raises(ExportError, match=message):
        read_pipeline(sentence_transformer(tmp_path, modules, pooling))


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read as JSON"), ("[]", "expected an object")])
def test_refuses_json_that_is_no_object(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SourceError, match=message):
        read_json(tmp_path / "a.json")


def test_a_length_is_a_whole_number(tmp_path: Path) -> None:
    sentence_transformer(tmp_path)
    for length, expected in ((32.0, 32), (1e30, int(1e30)), (None, None)):
        write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": length})
        found = read_pipeline(tmp_path).max_sequence_length
        assert (found, type(found)) == (expected, type(expected))


def test_reads_the_settings_under_every_name_they_had(tmp_path: Path) -> None:
    write_json(tmp_path / "sentence_xlnet_config.json", {"max_seq_length": 16, "do_lower_case": True})
    write_json(tmp_path / "sentence_bert_config.json", {})
    pipeline = read_pipeline(sentence_transformer(tmp_path))
    assert (pipeline.max_sequence_length, pipeline.do_lower_case) == (16, True)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 8})
    assert read_pipeline(sentence_transformer(tmp_path)).max_sequence_length == 8


def test_a_dense_layer_that_names_no_activation_has_that_of_its_class(tmp_path: Path) -> None:
    dense(tmp_path, bias=None, activation_function=None)
    assert isinstance(Dense.load(str(tmp_path / "2_Dense")).activation_function, torch.nn.Tanh)
    pipeline = read_pipeline(sentence_transformer(tmp_path, [TRANSFORMER, POOLING, DENSE]))
    (layer,) = pipeline.dense
    assert layer.settings == Projection(size=3, bias=True, activation="tanh")


def test_normalize_is_of_the_pooled_vector_or_refused(tmp_path: Path) -> None:
    sentence_transformer(tmp_path, [TRANSFORMER, POOLING, NORMALIZE])
    for name in ("module_input_name", "module_output_name"):
        write_json(tmp_path / "3_Normalize/config.json", {name: "sentence_embedding"})
        assert read_pipeline(tmp_path).normalize
        write_json(tmp_path / "3_Normalize/config.json", {name: "token_embeddings"})
        with pytest.raises(UnsupportedModel, match="a Normalize module on anything but the pooled vector"):
            read_pipeline(tmp_path)


WRONG_SETTINGS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "config_sentence_transformers.json": [
        ({"prompts": {"query": "query: "}, "default_prompt_name": "passage"}, "no prompt for .* 'passage': .'query'"),
        ({"default_prompt_name": "query"}, "no prompt for its default_prompt_name 'query'"),
        ({"prompts": {"query": "q"}, "default_prompt_name": ["query"]}, "no prompt for its default_prompt_name"),
        ({"prompts": ["query: "]}, "is malformed: AttributeError"),
        ({"prompts": {"query": 5}}, "is malformed: TypeError"),
        ({"truncate_dim": 4}, "says truncate_dim 4: .* each request may ask for the first of them .dimensions."),
        ({"max_active_dims": 9}, "max_active_dims 9: None is supported"),
        ({"model_type": "SparseEncoder"}, "model_type 'SparseEncoder': 'SentenceTransformer' is supported"),
    ],
    "sentence_bert_config.json": [
        ({"transformer_task": "fill-mask"}, "transformer_task 'fill-mask': 'feature-extraction' is supported"),
        ({"module_output_name": "sentence_embedding"}, "module_output_name 'sentence_embedding'"),
        ({"modality_config": {"text": {"method": "forward", "method_output_name": "pooler"}}}, "modality_config"),
        ({"processing_kwargs": {"text": {"max_length": 5}}}, "processing_kwargs {'text': {'max_length': 5}}"),
        ({"query_length": 6}, "query_length 6: None is supported"),  # what encode_query of 6.2 cuts at
        ({"document_length": 9}, "document_length 9: None is supported"),
        ({"tokenizer_args": {"model_max_length": 5}}, "tokenizer_args with model_max_length is not supported"),
        ({"max_seq_length": [512]}, "is malformed: TypeError"),
        ({"config_kwargs": {"hidden_act": "relu"}}, "config_kwargs with hidden_act is not supported"),
    ],
}


@pytest.mark.parametrize(
    ("name", "settings", "message"), [(name, *row) for name, rows in WRONG_SETTINGS.items() for row in rows]
)
def test_refuses_settings_it_would_not_reproduce(tmp_path: Path, name: str, settings: Any, message: str) -> None:
    write_json(tmp_path / name, settings)
    with pytest.raises(ExportError, match=message):
        read_pipeline(sentence_transformer(tmp_path))
