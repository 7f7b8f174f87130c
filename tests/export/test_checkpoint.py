"""A model's folder is found and read: its weights, the network that they make, and its tokenizer."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import torch
from huggingface_hub.errors import RevisionNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from export.checkpoint import read_checkpoint
from export.errors import ExportError, SourceError
from export.sources import DEFAULT_MODEL, DEFAULT_SHA256, Folder, find_folder, require_safetensors
from export.weights import read_weights
from model.artifact import MANIFEST, hash_file
from tests.export.conftest import change_json, write_json, write_modules
from tests.family_models import read


def test_the_default_model_comes_from_its_package_with_the_published_hash() -> None:
    for folder in (find_folder(None), find_folder(DEFAULT_MODEL)):
        assert folder.id == DEFAULT_MODEL
        assert hash_file(folder.path / "model.safetensors") == folder.sha256 == DEFAULT_SHA256


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere", "nowhere", "a/b/c", "~/nowhere", "~missing-user/a"])
def test_says_what_a_model_argument_may_be(model: str) -> None:
    with pytest.raises(SourceError, match="is not a folder, and not a Hugging Face id of the form owner/name"):
        find_folder(model)


def hub_listing(files: list[str]) -> SimpleNamespace:
    return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])


def test_fetches_only_text_and_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(model: str, **options: object) -> str:
        asked.update(options, model=model)
        return str(tmp_path / "0123abc")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    listed = ["config.json", "model.safetensors"]
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: hub_listing(listed))
    assert find_folder("owner/name", "main").revision == "0123abc"
    assert asked["revision"] == "main"
    patterns = ["*.json", "*.safetensors", "*vocab.txt", "*merges.txt", "artifact.metadata", "*chat_template.jinja"]
    assert asked["allow_patterns"] == patterns
    files = ["config.json", "pytorch_model.bin", "onnx/model.onnx", "training_args.bin", "2_Dense/pytorch_model.bin"]
    others = ["2_Dense/model.safetensors", "3_Dense/pytorch_model.bin", "colbert_linear.pt"]
    listed = files + others
    assert find_folder("owner/name", allows_pickles=True).allows_pickles
    wanted = ["pytorch_model.bin", "3_Dense/pytorch_model.bin", "colbert_linear.pt"]
    assert asked.pop("allow_patterns") == patterns + wanted
    listed = ["pytorch_model.bin"]
    with pytest.raises(SourceError, match="only as a pickle"):
        find_folder("owner/name")
    assert "allow_patterns" not in asked  # nothing was fetched


def test_a_revision_that_the_hub_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = httpx2.Response(404, request=httpx2.Request("GET", "https://hub"))
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info", Mock(side_effect=RevisionNotFoundError("404", response=found))
    )
    with pytest.raises(SourceError, match="owner/name has no branch, tag or commit v9 on the hub"):
        find_folder("owner/name", "v9")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["config.json", "a_linear.pt", "colbert_linear.pt", "pytorch_model.bin", "training_args.bin"],
            "only as a pickle (pytorch_model.bin), which can run code, so it is refused: --allow-pickled-weights",
        ),
        (["1_Dense/pytorch_model.bin", "pytorch_model-1-of-2.bin"], "(pytorch_model-1-of-2.bin)"),
        (["pytorch_model.bin"], "--revision refs/pr/N"),
        (["config.json"], "m has no model.safetensors"),
        (["config.json", "onnx/model.onnx"], "no model.safetensors, only onnx/model.onnx: an export begins from"),
    ],
)
def test_refuses_files_without_safetensors(files: list[str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        require_safetensors(files, "m")
    assert message in str(caught.value)


def test_a_folder_is_named_after_itself_and_has_no_revision(tmp_path: Path) -> None:
    assert find_folder(str(tmp_path)).id == tmp_path.name
    for model in (None, str(tmp_path)):
        with pytest.raises(SourceError, match="--revision v1 is of a model on the hub"):
            find_folder(model, "v1")


def test_reads_one_file_as_float32(tmp_path: Path) -> None:
    tensors = {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "ids": torch.tensor([1, 2])}
    save_file(tensors, tmp_path / "model.safetensors")
    read, sha256 = read_weights(tmp_path)
    assert torch.equal(read["half"], torch.tensor([1.5, -2.0]))
    assert read["ids"].dtype == torch.int64
    assert sha256 == hash_file(tmp_path / "model.safetensors")


INDEX = "model.safetensors.index.json"


def shards(**weight_map: str) -> bytes:
    return json.dumps({"weight_map": weight_map}).encode()


def test_reads_shards(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "2.safetensors")
    (tmp_path / INDEX).write_bytes(shards(a="1.safetensors", b="2.safetensors"))
    assert set(read_weights(tmp_path)[0]) == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"\xff" * 64, "cannot be read"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n",
            "model.safetensors is Git LFS's pointer to the file, not the file: `git lfs pull` fetches it",
        ),
        ("pytorch_model.bin", b"", "only as a pickle"),
        *(
            ("pytorch_model.bin", content, "is no file of weights")
            for content in (b"\xff" * 64, b"PK\3\4" + b"\0" * 60)
        ),
        (INDEX, shards(a="../x.safetensors"), "outside the folder"),
        (INDEX, shards(a="gone.safetensors"), "cannot be read"),
        *((INDEX, content, r"index.json is malformed: ") for content in (b"{}", b"[]", b"{", b'{"weight_map": []}')),
    ],
)
def test_refuses_files_that_are_no_weights(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read_weights(tmp_path, allows_pickles=bool(content))


def test_reads_tensors_from_pickles_that_are_allowed(tmp_path: Path) -> None:
    tensors = {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "part": torch.nn.Parameter(torch.ones(2))}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    read, sha256 = read_weights(tmp_path, allows_pickles=True)
    assert torch.equal(read["half"], torch.tensor([1.5, -2.0]))
    assert not read["part"].requires_grad
    assert sha256 == hash_file(tmp_path / "pytorch_model.bin")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "pytorch_model-1.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"half": "pytorch_model-1.bin"}}')
    assert set(read_weights(tmp_path, allows_pickles=True)[0]) == set(tensors)
    save_file({"other": torch.ones(1)}, tmp_path / "model.safetensors")
    assert set(read_weights(tmp_path, allows_pickles=True)[0]) == {"other"}


class Runs:
    """A pickle of it runs code when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Runs(), "refuses it (UnpicklingError)"),
        ([torch.ones(1)], "holds None, a list: expected plain tensors by name"),
        ({"state_dict": {"a": torch.ones(1)}, "b": torch.ones(1)}, "holds state_dict, a dict: expected"),
        ({1: torch.ones(1)}, "holds 1, a Tensor: expected plain tensors"),
        ({"a": torch.ones(2).to_sparse()}, "holds a, a Tensor: expected plain tensors"),
    ],
)
def test_refuses_pickles_of_anything_but_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(held, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceError, match=re.escape(message)):
        read_weights(tmp_path, allows_pickles=True)
    assert not (tmp_path / "ran").exists()


QUERY, IMAGINARY = "encoder.layer.0.attention.self.query.weight", torch.ones(32, 32, dtype=torch.complex64)


def add_weights(folder: Path, added: dict[str, torch.Tensor]) -> Path:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **added}, path)
    return folder


def test_the_source_names_every_file_that_makes_the_model(bert_folder: Path) -> None:
    write_modules(bert_folder, {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"})
    write_json(bert_folder / "1_Pooling" / "config.json", {})
    write_json(bert_folder / "2_Dense" / "config.json", {"in_features": 32, "out_features": 8})
    sources = []
    for seed in (1, 2):
        dense = {"linear.weight": torch.full((8, 32), seed / 8), "linear.bias": torch.zeros(8)}
        save_file(dense, bert_folder / "2_Dense" / "model.safetensors")
        sources.append(read(bert_folder).source)
    before, after = sources
    assert before.sha256 == after.sha256
    assert [name for name in before.files if before.files[name] != after.files[name]] == ["2_Dense/model.safetensors"]
    assert {"tokenizer.json", "config.json", "modules.json", "1_Pooling/config.json"} <= before.files.keys()


def test_heads_of_other_tasks_and_of_pre_training_are_left_out_of_an_embedding(bert_folder: Path) -> None:
    plain = read(bert_folder).encoder.state_dict()
    heads = ("classifier", "qa_outputs", "cls.predictions.transform.dense", "pooler.dense")
    added = {f"{head}.{part}": torch.ones(2) for head in heads for part in ("weight", "bias")}
    found = read(add_weights(bert_folder, added), task="embedding").encoder.state_dict()
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


def test_the_stored_truncation_and_padding_of_the_tokenizer_are_removed(bert_folder: Path) -> None:
    checkpoint = read(bert_folder)
    checkpoint.tokenizer.enable_truncation(4)
    checkpoint.tokenizer.enable_padding(length=9)
    checkpoint.tokenizer.save(str(bert_folder / "tokenizer.json"))
    again = read(bert_folder).tokenizer
    assert " ".join(again.encode("the cat sat on the mat").tokens) == "[CLS] the cat sat on the mat [SEP]"


def test_texts_are_lowered_where_the_pipeline_says_so(bert_folder: Path) -> None:
    change_json(bert_folder / "tokenizer.json", normalizer=None)
    write_modules(bert_folder, {"": "Transformer", "1_Pooling": "Pooling"})
    write_json(bert_folder / "1_Pooling" / "config.json", {})
    write_json(bert_folder / "sentence_bert_config.json", {"do_lower_case": True})
    assert read(bert_folder).tokenizer.encode("CAT").tokens[1] == "cat"


def test_pruned_heads_are_counted_a_layer(bert_folder: Path) -> None:
    path = bert_folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if name.startswith("encoder.layer.1.attention.self."):
            tensors[name] = tensors[name][8:].contiguous()
    name = "encoder.layer.1.attention.output.dense.weight"
    tensors[name] = tensors[name][:, 8:].contiguous()
    save_file(tensors, path)
    checkpoint = read(change_json(bert_folder / "config.json", pruned_heads={"1": [0]}))
    assert checkpoint.encoder.config.num_heads == (4, 3, 4)


def make_a_table(folder: Path, **truncation: Any) -> None:
    write_modules(folder, {"": "StaticEmbedding"})
    save_file({"embedding.weight": torch.ones(48, 2)}, folder / "model.safetensors")
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.enable_truncation(**truncation)
    made.save(str(folder / "tokenizer.json"))


def table_without_a_tokenizer(folder: Path) -> None:
    make_a_table(folder, max_length=9)
    (folder / "tokenizer.json").unlink()


def table_without_a_token_for_unknown_words(folder: Path) -> None:
    make_a_table(folder, max_length=9)
    described = json.loads((folder / "tokenizer.json").read_bytes())
    described["model"]["unk_token"] = "[NONE]"  # noqa: S105 - a token of text
    write_json(folder / "tokenizer.json", described)


def test_texts_of_a_table_are_cut_where_its_tokenizer_cuts_them(bert_folder: Path) -> None:
    make_a_table(bert_folder, max_length=9)
    write_json(bert_folder / "tokenizer_config.json", {"model_max_length": 5})  # which the original does not read
    write_json(bert_folder / "sentence_bert_config.json", {"max_seq_length": 4})
    assert read(bert_folder).max_sequence_length == 9


FILES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: add_weights(folder, {QUERY: IMAGINARY}), "attention.query.weight is made of torch.complex64"),
    (lambda folder: write_json(folder / "gliner_config.json", {}), "json: GLiNER labels spans by a network of its own"),
    (lambda folder: write_json(folder / "adapter_config.json", {}), "an adapter: name the model .* and --adapter"),
    (lambda folder: write_json(folder / "tokenizer.json", {}), "tokenizer.json is not a tokenizer"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    (table_without_a_tokenizer, "tokenizer.json is not a tokenizer: No such file"),
    (table_without_a_token_for_unknown_words, "the tokenizer fails on a text such as .*Missing .* token"),
    (lambda folder: make_a_table(folder, max_length=9, direction="left"), "tokenizer.json cuts long texts at the left"),
]


@pytest.mark.parametrize(("change", "message"), FILES)
def test_refuses_files_it_would_not_read_whole(
    bert_folder: Path, change: Callable[[Path], object], message: str
) -> None:
    change(bert_folder)
    with pytest.raises(ExportError, match=message):
        read(bert_folder)


def test_refuses_weights_other_than_those_vouched_for(bert_folder: Path) -> None:
    with pytest.raises(ExportError, match="have SHA-256 .*, expected 000"):
        read_checkpoint(Folder(bert_folder, "bert", sha256="0" * 64))


@pytest.mark.parametrize(
    ("places", "value", "highest"),
    [
        (("model", "vocab"), {f"word{index}": 16 + index for index in range(40)}, 55),
        (("model", "vocab"), {"york": 4000}, 4000),  # with a gap
        (("post_processor", "special_tokens", "[CLS]"), {"ids": [5000]}, 5000),
    ],
)
def test_refuses_ids_that_the_network_does_not_have(
    bert_folder: Path, places: tuple[str, ...], value: dict[str, object], highest: int
) -> None:
    tokenizer = json.loads((bert_folder / "tokenizer.json").read_text())
    part = tokenizer
    for place in places:
        part = part[place]
    part.update(value)
    (bert_folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ExportError, match=f"tokenizer.json has ids up to {highest}, the network 48 tokens"):
        read(bert_folder)


@pytest.mark.parametrize("length", [0, 2, 41])
def test_refuses_a_length_without_room_for_text_or_positions(bert_folder: Path, length: int) -> None:
    with pytest.raises(ExportError, match=f"a longest text of {length} tokens: expected 3 to 40"):
        read(bert_folder, max_length=length)
    assert read(bert_folder, max_length=3).max_sequence_length == 3


def test_a_folder_without_a_configuration_is_told_from_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json: name a sentence-transformers or Hugging Face folder"):
        read(tmp_path)
    (tmp_path / MANIFEST).touch()
    with pytest.raises(SourceError, match=r"holds no config\.json, and is an artifact already: name a"):
        read(tmp_path)


def test_added_tokens_without_a_row_are_read_as_text(bert_folder: Path) -> None:
    plain = read(bert_folder).tokenizer
    path = bert_folder / "tokenizer.json"
    made = Tokenizer.from_file(str(path))
    made.add_tokens([AddedToken(f"<image_{index}>") for index in range(48)])  # more than the network has rows
    made.save(str(path))
    found = read(bert_folder).tokenizer
    assert max(found.get_vocab().values()) == 47
    assert found.encode("the <image_47> cat").ids == plain.encode("the <image_47> cat").ids


def test_pooling_is_asked_for_where_the_folder_does_not_say(bert_folder: Path) -> None:
    found = read(bert_folder, pooling="cls")
    assert (found.defaults.pooling, found.encoder.config.pooling) == ("cls", "cls")
    write_modules(bert_folder, {"": "Transformer"})
    with pytest.raises(ExportError, match="--pooling cls is for embeddings of folders that do not say how"):
        read(bert_folder, pooling="cls")


@pytest.mark.parametrize("content", [b"[" * 100_000, b'["\xe9' + b"x" * 3000 + b'"]'])
@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer_config.json"])
def test_files_that_are_no_json_are_said_in_a_line(bert_folder: Path, name: str, content: bytes) -> None:
    (bert_folder / name).write_bytes(content)
    with pytest.raises(SourceError, match=name) as caught:
        read(bert_folder)
    assert len(str(caught.value)) < 500
