"""The comparison of a checkpoint with the libraries that it was made for."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import export.original
from export.cli import main
from export.errors import ParityError, SourceError, UnsupportedModel
from export.original import FIGURES, compare_with_original, describe
from export.sources import read_json
from export.tokenizer import FLAGS
from model.artifact import Artifact
from tests.export.conftest import change_json, write_json
from tests.family_models import NAMED, draw, read, save
from tests.task_artifacts import TaskArtifact
from tests.tokenizers import TOKENIZERS
from tests.yes_no import build

TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("embedder", "pooled"),
        ("reranker", "logits"),
        ("sparse_encoder", "sparse"),
        ("multi_vector_encoder", "token_vectors"),
    ],
)
def test_every_task_is_compared_to_its_answer(name: str, answer: str, request: pytest.FixtureRequest) -> None:
    made: TaskArtifact = request.getfixturevalue(name)
    checkpoint = read(made.folder)
    found = compare_with_original(checkpoint, made.folder)
    assert found["compared"], found
    assert found[answer] < TOLERANCE
    assert {"attentions", "last_hidden_state"} < found.keys()
    assert ("hidden_states" in found) == (checkpoint.encoder.config.num_layers > 1)  # of layers before the last
    assert "tokens" not in found
    assert f"{answer} " in describe(found)


@pytest.mark.parametrize(
    ("name", "settings"), [("embedder", {"do_lower_case": True}), ("multi_vector_encoder", {"document_length": 10})]
)
def test_tokens_and_lengths_are_those_of_the_folder(
    name: str, settings: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: TaskArtifact = request.getfixturevalue(name)
    folder = Path(shutil.copytree(made.folder, tmp_path / name))
    path = folder / "sentence_bert_config.json"
    write_json(path, {**read_json(path, optional=True), **settings})
    found = compare_with_original(read(folder), folder)
    assert found["compared"]
    assert not {"tokens", "answer"} & found.keys()


def test_a_language_model_is_compared_by_what_it_says_next(tmp_path: Path) -> None:
    folder = build(tmp_path, tied=True, ends=False)
    found = compare_with_original(read(folder, task="classification"), folder)
    assert found["logits"] < TOLERANCE


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("layers.1.attention.query", "attention of layer 1 is the first that differs"),
        ("layers.1.feed_forward.down", "the hidden state behind layer 1 is the first that differs"),
        ("layers.2.feed_forward.down", "the last hidden state is the first that differs"),
    ],
)
def test_the_first_layer_that_differs_is_named(bert_folder: Path, part: str, named: str) -> None:
    checkpoint = read(bert_folder)
    with torch.no_grad():
        checkpoint.encoder.get_parameter(f"{part}.weight").mul_(1.1)
    with pytest.raises(ParityError, match=named):
        compare_with_original(checkpoint, bert_folder)


def test_other_tokens_are_refused(bert_folder: Path) -> None:
    checkpoint = read(bert_folder)
    checkpoint.tokenizer.normalizer = Lowercase()
    with pytest.raises(ParityError, match="the original's tokenizer gives .*: its class overrules tokenizer.json"):
        compare_with_original(checkpoint, bert_folder)


def _saved(family: str, folder: Path, tokenizer: str) -> Path:
    model = replace(NAMED[family], tokenizer=tokenizer)
    return save(draw(model), model, folder / family)


@pytest.mark.parametrize("flags", [(None, True), (True, True), (False, True), (True, False), (None, None)])
@pytest.mark.parametrize("kind", ["mistral", "gemma"])
def test_tokens_around_a_text_are_those_that_tokenizer_config_asks_for(
    kind: str, flags: tuple[bool | None, bool | None], tmp_path: Path
) -> None:
    """Release 5 of the library reads the flags when they are set, and not from a folder with a tokenizer.json."""
    folder = _saved("mistral", tmp_path, kind)
    given = {name: flag for name, flag in zip(FLAGS, flags, strict=True) if flag is not None}
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", **named, **given})
    expected = AutoTokenizer.from_pretrained(folder)
    for name, flag in {**FLAGS, **given}.items() if given else ():
        setattr(expected, name, flag)
    checkpoint = read(folder)
    for text in ("", "a cat", "a <eos> b"):
        assert checkpoint.tokenizer.encode(text).ids == expected(text)["input_ids"]
    assert checkpoint.tokenizer.encode("a", "b").ids == expected("a", "b")["input_ids"]
    assert not {"tokens", "answer"} & compare_with_original(checkpoint, folder).keys()


def test_a_tokenizer_that_stands_as_it_is_has_the_tokens_of_its_file(tmp_path: Path) -> None:
    folder = _saved("modernbert", tmp_path, "gemma")
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "add_eos_token": False,
    }
    write_json(folder / "tokenizer_config.json", settings)
    checkpoint = read(folder)
    assert checkpoint.tokenizer.encode("").tokens == ["<bos>", "<eos>"]
    assert not {"tokens", "answer"} & compare_with_original(checkpoint, folder).keys()


def test_a_token_that_is_asked_for_has_to_be_there(tmp_path: Path) -> None:
    folder = _saved("mistral", tmp_path, "mistral")
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<bos>", "add_eos_token": True}  # its own is </s>
    write_json(folder / "tokenizer_config.json", settings)
    with pytest.raises(SourceError, match="asks for add_eos_token, and tokenizer.json has no </s>"):
        read(folder)


def test_a_normaliser_that_release_4_wrote_is_kept(tmp_path: Path) -> None:
    folder, tokenizer = _saved("deberta", tmp_path, "deberta"), TOKENIZERS["deberta"]()
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "DebertaV2Tokenizer", "unk_token": "[UNK]"})
    checkpoint = read(folder)
    text = " the  cat\tsat "
    assert checkpoint.tokenizer.encode(text).ids == tokenizer.encode(text).ids
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] != tokenizer.encode(text).ids
    assert not {"tokens", "answer"} & compare_with_original(checkpoint, folder).keys()


@pytest.mark.parametrize("kind", ["BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer"])
def test_a_tokenizer_of_its_own_code_has_to_be_compared(kind: str, tmp_path: Path) -> None:
    folder = _saved("bert", tmp_path, "wordpiece")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind})
    with pytest.raises(
        UnsupportedModel, match="tokenizer is code of its own, and tokenizer.json may give other tokens"
    ):
        read(folder)
    assert read(folder, compared=True).tokenizer.get_vocab_size()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="tokenizer is code of its own, which is never run"):
        read(folder, compared=True)


def test_other_token_types_of_a_pair_are_refused(tmp_path: Path) -> None:
    theirs = draw(NAMED["bert"], auto=AutoModelForSequenceClassification)
    folder = write_json(
        save(theirs, NAMED["bert"], tmp_path) / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}
    )
    checkpoint = read(folder)
    described = checkpoint.tokenizer.to_str().replace('"type_id":1', '"type_id":0')
    with pytest.raises(ParityError, match="of 'the types of The cat .* the original's tokenizer gives .1, 1, 1.: its"):
        compare_with_original(replace(checkpoint, tokenizer=Tokenizer.from_str(described)), folder)


def test_without_the_libraries_manifest_and_command_say_so(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.original, "find_spec", lambda _: None)
    found = compare_with_original(read(bert_folder), bert_folder)
    assert found == {"compared": False, "reason": "transformers and sentence-transformers are not installed"}
    assert "compared with nothing but itself" in describe(found)
    assert "pip install 'polyhead[verify]'" in describe(found)


def test_a_network_of_its_own_code_is_not_compared(bert_folder: Path) -> None:
    made = read(bert_folder)
    found = compare_with_original(made, change_json(bert_folder / "config.json", auto_map={"AutoModel": "mine.Bert"}))
    assert found == {"compared": False, "reason": "its network is defined by the model's own code, which is never run"}


def test_an_unknown_setting_is_let_through_only_where_the_original_judges_it(
    bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = change_json(bert_folder / "config.json", surprise=1)
    command = [str(folder), "--output", str(tmp_path / "made"), "--no-explain"]
    assert main([*command, "--against", "none"]) == 1
    assert "config.json says surprise, which may change the network" in capsys.readouterr().err
    assert main(command) == 0
    assert "equal to transformers" in capsys.readouterr().err
    original = Artifact.open(tmp_path / "made").manifest.parity["original"]
    assert original["compared"]
    assert max(original[name] for name in FIGURES if name in original) < TOLERANCE
