"""What is read of a MultiVectorEncoder's folder, and what of it is not reproduced."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import UnsupportedModel
from export.sources import Folder
from model.config_parts import MultiVectorSettings
from tests.export.conftest import change_json
from tests.task_artifacts import TaskArtifact


@pytest.fixture
def folder(multi_vector_encoder: TaskArtifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(multi_vector_encoder.folder, tmp_path / "folder"))


def change(folder: Path, name: str, **settings: Any) -> Checkpoint:
    change_json(folder / name, **settings)
    return read_checkpoint(Folder(folder, "mine"))


def test_lengths_are_read_and_words_that_are_no_token_are_not_skipped(folder: Path) -> None:
    words = {"skiplist_words": [".", "unbelievable words", ","], "skiplist_tasks": ["query", "document"]}
    change_json(folder / "2_MultiVectorMask" / "config.json", **words)
    checkpoint = change(folder, "sentence_bert_config.json", query_length=32, document_length=60)
    found = checkpoint.encoder.config.task_settings
    assert isinstance(found, MultiVectorSettings)
    assert (found.query_length, found.document_length) == (32, 60)
    assert [checkpoint.tokenizer.id_to_token(index) for index in sorted(found.skipped_ids)] == [",", "."]
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
        read_checkpoint(Folder(folder, "mine"))
