"""ColBERT as PyLate and Stanford publish it: vectors of queries and documents against MultiVectorEncoder.

And what is read of a MultiVectorEncoder's own folder, and what of it is not reproduced.
"""

import json
import shutil
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from tokenizers import Tokenizer
from transformers import AutoModel

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedModel
from export.exporter import write_graph
from export.graph import trace
from export.late_interaction import keep_markers_whole, read_expansion
from export.runtime import Session
from export.texts import graph_inputs, run_encoder
from model.artifact import GRAPH
from model.config import EncoderConfig
from model.config_parts import MultiVectorSettings, QueryExpansion
from tests.export.conftest import change_json, write_json, write_modules
from tests.family_models import NAMED, draw, read, save
from tests.task_artifacts import TaskArtifact

TOLERANCE = 1e-5
QUERY_LENGTH, DOCUMENT_LENGTH, WIDE, SIZE = 9, 20, 24, 6
TEXTS = ["a", "The cats sat, on the mats.", "lower newest wider: abc123!", " ".join(["unbelievably wide cats"] * 20)]
SPECIAL = {"bert": ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"), "other": ("<s>", "</s>", "<pad>", "<unk>", "<mask>")}
CLASSES = {"bert": "BertTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "modernbert": "PreTrainedTokenizerFast"}


def draw_folder(name: str, folder: Path, **settings: Any) -> Path:
    """A network with a tokenizer that has the markers of both forms."""
    more = {"vocab_size": 404, "local_attention": 24} if name == "modernbert" else {"vocab_size": 404}
    save(draw(NAMED[name], **more, **settings), NAMED[name], folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["[Q] ", "[D] ", "[unused0]", "[unused1]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")
    tokens = dict(zip(roles, SPECIAL.get(name, SPECIAL["other"]), strict=True))
    if name == "xlm-roberta":
        tokens |= {"bos_token": "<s>", "eos_token": "</s>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": CLASSES[name], "model_max_length": 40, **tokens})
    return folder


def matrix(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def stanford(name: str, folder: Path, *, attend: bool) -> Path:
    """As colbertv2.0: one file of weights, the dense layer in it, and artifact.metadata."""
    draw_folder(name, folder)
    change_json(folder / "config.json", architectures=["HF_ColBERT"])
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "linear.weight": matrix(1, SIZE, 32)}, folder / "model.safetensors", {"format": "pt"})
    metadata = {"query_maxlen": QUERY_LENGTH, "doc_maxlen": DOCUMENT_LENGTH, "attend_to_mask_tokens": attend}
    write_json(folder / "artifact.metadata", metadata)
    return folder


def pylate(name: str, folder: Path, *, attend: bool, **settings: Any) -> Path:
    """As GTE-ModernColBERT and mxbai-edge-colbert: a chain of dense layers with residuals and their settings."""
    draw_folder(name, folder, **settings)
    dense = {f"{index}_Dense": "pylate.models.Dense.Dense" for index in (1, 2, 3)}
    write_modules(folder, {"": "Transformer", **dense})
    for index, (size, out, act) in enumerate(((32, WIDE, "GELU"), (WIDE, WIDE, ""), (WIDE, SIZE, "")), 1):
        kind = "activation.GELU" if act == "GELU" else "linear.Identity"
        config = {"in_features": size, "out_features": out, "bias": index == 1, "use_residual": index < 3}
        place = folder / f"{index}_Dense"
        write_json(place / "config.json", {**config, "activation_function": f"torch.nn.modules.{kind}"})
        state = {"linear.weight": matrix(index, out, size)} | ({"linear.bias": matrix(7, out)} if index == 1 else {})
        state |= {"residual.weight": matrix(8, out, size)} if index == 1 else {}
        save_file(state, place / "model.safetensors")
    around = {
        "model_type": "ColBERT",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": QUERY_LENGTH,
        "document_length": DOCUMENT_LENGTH,
        "attend_to_expansion_tokens": attend,
        "skiplist_words": list(string.punctuation),
        "similarity_fn_name": "cosine",
    }
    write_json(folder / "config_sentence_transformers.json", around)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    return folder


def settings_of(config: EncoderConfig) -> MultiVectorSettings:
    assert isinstance(config.task_settings, MultiVectorSettings)
    return config.task_settings


def row(checkpoint: Checkpoint, role: str, text: str) -> tuple[list[int], int]:
    """Token ids of a query or document, and how many of them are seen."""
    settings = settings_of(checkpoint.encoder.config)
    expansion = settings.query_expansion if role == "query" else None
    ids = checkpoint.tokenizer.encode(checkpoint.defaults.prompts[role] + text).ids
    longest = settings.document_length if role == "document" else expansion and expansion.length
    if longest and len(ids) > longest:
        ids = [*ids[: longest - 1], ids[-1]]
    missing = max(0, expansion.length - len(ids)) if expansion else 0
    seen = len(ids) + (missing if expansion and expansion.attend else 0)
    return ids + [expansion.token_id if expansion else 0] * missing, seen


def batch(checkpoint: Checkpoint, rows: list[tuple[list[int], int]]) -> dict[str, NDArray[Any]]:
    ids = np.zeros((len(rows), max(len(ids) for ids, _ in rows)), np.int64)
    for place, (own, _) in enumerate(rows):
        ids[place, : len(own)] = own
    lengths, seen = np.array([len(own) for own, _ in rows]), np.array([seen for _, seen in rows])
    return graph_inputs(checkpoint.encoder.config, ids, lengths, seen_lengths=seen)


def compare(checkpoint: Checkpoint, folder: Path, outputs: NDArray[np.float32], rows: list[Any]) -> None:
    """Holds the vectors of all queries and then all documents against sentence-transformers'."""
    theirs: Any = MultiVectorEncoder(str(folder), device="cpu", model_kwargs={"attn_implementation": "eager"})
    expected = [*theirs.encode_query(TEXTS), *theirs.encode_document(TEXTS)]
    settings = settings_of(checkpoint.encoder.config)
    for place, (vectors, (ids, _), reference) in enumerate(zip(outputs, rows, expected, strict=True)):
        found = vectors[: len(ids)]
        if place >= len(TEXTS):
            found = found[~np.isin(ids, settings.skipped_ids)]
        found = found / np.linalg.norm(found, axis=1, keepdims=True)
        np.testing.assert_allclose(found, reference, atol=TOLERANCE, rtol=0, err_msg=f"row {place}")


@pytest.mark.parametrize(
    ("name", "form", "attend"),
    [
        pytest.param(name, form, attend, marks=[] if name == "bert" or attend else [pytest.mark.exhaustive])
        for name in CLASSES
        for form in (stanford, pylate)
        for attend in (False, True)
    ],
)
def test_both_published_forms_equal_multi_vector_encoder(name: str, form: Any, attend: bool, tmp_path: Path) -> None:
    folder = form(name, tmp_path / "folder", attend=attend)
    checkpoint = read(folder)
    assert ("artifact.metadata" in checkpoint.source.files) == (form is stanford)
    rows = [row(checkpoint, role, text) for role in ("query", "document") for text in TEXTS]
    encoder = checkpoint.encoder.use("eager")
    compare(checkpoint, folder, run_encoder(encoder, batch(checkpoint, rows)).task_output.numpy(), rows)
    settings = settings_of(encoder.config)
    assert settings.query_expansion is not None
    assert (settings.query_expansion.length, settings.query_expansion.attend) == (QUERY_LENGTH, attend)
    assert checkpoint.defaults.normalize
    fused = run_encoder(checkpoint.encoder.use("sdpa"), batch(checkpoint, rows)).task_output.numpy()
    compare(checkpoint, folder, fused, rows)


@pytest.mark.parametrize(
    ("sparse", "vectors"), [((32, 2, True), (32, 4)), ((32, 1, True), (24, 4)), ((32, 1, False), (32, 4))], ids=str
)
def test_bge_m3_s_layers_of_other_sizes_are_refused(
    tmp_path: Path, sparse: tuple[int, int, bool], vectors: tuple[int, int]
) -> None:
    folder = draw_folder("xlm-roberta", tmp_path / "folder")
    for name, layer in (("sparse", torch.nn.Linear(*sparse)), ("colbert", torch.nn.Linear(*vectors))):
        torch.save(layer.state_dict(), folder / f"{name}_linear.pt")
    with pytest.raises(UnsupportedModel, match="expected layers on 32 numbers"):
        read(folder, allows_pickles=True)


def test_bge_m3_s_layer_for_tokens_is_read_from_its_own_file(tmp_path: Path) -> None:
    folder = draw_folder("xlm-roberta", tmp_path / "folder")
    write_modules(folder, {"": "Transformer"})
    layer = torch.nn.Linear(32, SIZE)
    torch.save(layer.state_dict(), folder / "colbert_linear.pt")
    with pytest.raises(SourceError, match=r"only as a pickle \(colbert_linear.pt\).*--allow-pickled-weights"):
        read(folder, task="multi_vector")
    checkpoint = read(folder, allows_pickles=True, task="multi_vector")
    settings_files = ["config.json", "modules.json", "tokenizer.json", "tokenizer_config.json"]
    assert list(checkpoint.source.files) == ["colbert_linear.pt", *settings_files]
    network = AutoModel.from_pretrained(folder).eval()
    settings = settings_of(checkpoint.encoder.config)
    for text in TEXTS:
        ids = checkpoint.tokenizer.encode(text).ids[:40]
        with torch.no_grad():
            expected = layer(network(torch.tensor([ids])).last_hidden_state[0, 1:]).numpy()
        inputs = graph_inputs(checkpoint.encoder.config, np.array([ids]), np.array([len(ids)]))
        found = run_encoder(checkpoint.encoder.use("sdpa"), inputs).task_output.numpy()[0]
        np.testing.assert_allclose(found[~np.isin(ids, settings.skipped_ids)], expected, atol=TOLERANCE)
    assert settings.skipped_in == ("query", "document")


def test_the_graph_takes_two_lengths_a_row_and_rows_do_not_depend_on_each_other(tmp_path: Path) -> None:
    folder = pylate("modernbert", tmp_path / "folder", attend=False, num_hidden_layers=2)
    checkpoint = read(folder)
    (tmp_path / "graph").mkdir()
    write_graph(trace(checkpoint.encoder), tmp_path / "graph")
    session = Session(tmp_path / "graph" / GRAPH, threads=1)
    rows = [row(checkpoint, role, text) for role in ("query", "document") for text in TEXTS]
    outputs = session.run(batch(checkpoint, rows))["token_vectors"]
    compare(checkpoint, folder, outputs, rows)
    for place, alone in enumerate(rows):
        vectors = session.run(batch(checkpoint, [alone]))["token_vectors"][0]
        assert np.array_equal(vectors, outputs[place, : len(vectors)])


def test_a_longer_query_is_cut_or_keeps_its_tokens(tmp_path: Path) -> None:
    folder = pylate("bert", tmp_path / "folder", attend=False)
    path = folder / "config_sentence_transformers.json"
    around = json.loads(path.read_text())
    write_json(path, {**around, "query_expansion": {"strategy": "min", "length": 8}})
    settings = settings_of(read(folder).encoder.config)
    assert settings.query_expansion == QueryExpansion(token_id=4, length=8, attend=False, truncate=False)
    assert settings.query_length == QUERY_LENGTH
    write_json(path, {**around, "do_query_expansion": False})
    settings = settings_of(read(folder).encoder.config)
    assert (settings.query_expansion, settings.query_length) == (None, QUERY_LENGTH)
    write_json(path, {**around, "query_expansion": {"strategy": "other", "length": 8}})
    with pytest.raises(UnsupportedModel, match="query_expansion strategy 'other': 'fixed', 'min' is supported"):
        read(folder)
    write_json(path, around)  # to a fixed length
    change_json(folder / "tokenizer_config.json", padding_side="left")
    with pytest.raises(UnsupportedModel, match="padding_side 'left' puts its tokens before a query"):
        read(folder)


def test_a_marker_that_is_no_token_stays_text(tmp_path: Path) -> None:
    folder = draw_folder("bert", tmp_path)
    tokenizer = keep_markers_whole(Tokenizer.from_file(str(folder / "tokenizer.json")), ("[Q] ", "query: ", ""))
    assert tokenizer.encode("[Q] cats", add_special_tokens=False).tokens[0] == "[Q] "
    assert len(tokenizer.encode("query: cats", add_special_tokens=False).tokens) > 2
    with pytest.raises(UnsupportedModel, match="query_expansion by nothing: the tokenizer has no such token"):
        read_expansion({"strategy": "min", "length": 3, "token": "nothing"}, tokenizer, folder)


@pytest.fixture
def folder(multi_vector_encoder: TaskArtifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(multi_vector_encoder.folder, tmp_path / "folder"))


def change(folder: Path, name: str, **settings: Any) -> Checkpoint:
    change_json(folder / name, **settings)
    return read(folder)


def test_lengths_are_read_and_words_that_are_no_token_are_not_skipped(folder: Path) -> None:
    words = {"skiplist_words": [".", "unbelievable words", ","], "skiplist_tasks": ["query", "document"]}
    change_json(folder / "2_MultiVectorMask" / "config.json", **words)
    checkpoint = change(folder, "sentence_bert_config.json", query_length=32, document_length=60)
    found = settings_of(checkpoint.encoder.config)
    assert (found.query_length, found.document_length) == (32, 60)
    assert {checkpoint.tokenizer.id_to_token(index) for index in found.skipped_ids} == {",", "."}
    assert found.skipped_in == ("query", "document")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "other", "length": 8}}, "strategy .other."),
        ("config_sentence_transformers.json", {"similarity_fn_name": "meanmaxsim"}, "similarity_fn_name 'meanmaxsim'"),
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, "keep_only_token_ids"),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "on anything but tokens' vectors"),
        ("3_Normalize/config.json", {"module_input_name": "sentence_embedding"}, "on anything but tokens' vectors"),
    ],
)
def test_what_would_not_be_reproduced_is_refused(folder: Path, name: str, settings: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        change(folder, name, **settings)


def test_vectors_that_nothing_normalises_are_refused(folder: Path) -> None:
    path = folder / "modules.json"
    path.write_text(json.dumps([one for one in json.loads(path.read_text()) if "Normalize" not in one["type"]]))
    with pytest.raises(UnsupportedModel, match="lists no Normalize: token vectors have to be of length 1"):
        read(folder)
