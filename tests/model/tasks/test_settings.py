"""What describes a task's layers: read back as written, refused where it describes none."""

import json
from dataclasses import replace
from typing import Any

import pytest

from model.config import EncoderConfig
from model.config_checks import ConfigError
from model.config_parts import Projection
from model.tasks.settings import ClassificationSettings, MultiVectorSettings, SparseSettings, TaskSettings
from tests.networks import TINY

EXAMPLES: list[tuple[str, TaskSettings, int]] = [
    ("classification", ClassificationSettings(labels=("no", "yes"), dense_norm=True), 2),
    ("sparse", SparseSettings(tied=False, saturations=2), 48),
    ("multi_vector", MultiVectorSettings(size=7, skipped_ids=(3, 5), query_length=32), 7),
]


def with_task(task: str, settings: TaskSettings | None) -> EncoderConfig:
    return replace(TINY, task=task, task_settings=settings)  # type: ignore[arg-type]  # wrong ones are what is tested


@pytest.mark.parametrize(("task", "settings", "size"), EXAMPLES)
def test_a_task_survives_json(task: str, settings: TaskSettings, size: int) -> None:
    config = with_task(task, settings)
    assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.output_size == size


def test_what_was_written_before_there_were_tasks_is_an_embedding() -> None:
    written = TINY.to_dict()
    del written["task"], written["task_settings"]
    config = EncoderConfig.from_dict(written)
    assert (config.task, config.task_settings, config.output_size) == ("embedding", None, 32)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("ranking", None, "task is 'ranking': expected one of embedding, classification, sparse, multi_vector"),
        ("sparse", None, "task sparse with task_settings NoneType: expected SparseSettings"),
        ("embedding", SparseSettings(), "task embedding with task_settings SparseSettings: expected NoneType"),
        ("sparse", MultiVectorSettings(size=3), "task sparse with task_settings MultiVectorSettings: expected Sparse"),
    ],
)
def test_a_task_comes_with_its_own_settings(task: str, settings: TaskSettings | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_task(task, settings)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("classification", {"labels": []}, "expected at least one text"),
        ("classification", {"labels": [1]}, "expected at least one text"),
        ("classification", {"labels": ["a", "a"]}, "expected names that differ"),
        ("classification", {"activation": "tanh"}, "activation is 'tanh': expected one of identity, sigmoid, softmax"),
        ("classification", {"dense_activation": "selu"}, "dense_activation is 'selu'"),
        ("classification", {"dense_norm": 1}, "dense_norm is 1: expected true or false"),
        ("classification", {"heads": 3}, "incomplete encoder configuration"),
        ("sparse", {"saturations": 3}, "saturations is 3: expected a whole number of at least 1 and at most 2"),
        ("sparse", {"tied": None}, "tied is None: expected true or false"),
        ("multi_vector", {"size": 0}, "size is 0"),
        ("multi_vector", {"skipped_ids": [-1]}, "skipped_ids is -1"),
        ("multi_vector", {"skipped_in": ["answer"]}, "skipped_in is 'answer': expected one of query, document"),
        ("multi_vector", {"query_length": 0}, "query_length is 0"),
        ("embedding", {}, "task_settings for task 'embedding': only classification, sparse, multi_vector have"),
    ],
)
def test_settings_that_describe_no_layers_are_refused(task: str, change: dict[str, Any], message: str) -> None:
    written = {name: dict(with_task(name, settings).to_dict()["task_settings"]) for name, settings, _ in EXAMPLES}
    settings = {**written.get(task, {}), **change}
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict({**TINY.to_dict(), "task": task, "task_settings": settings})


def test_only_an_embedding_has_a_projection() -> None:
    with pytest.raises(ConfigError, match="projections are dense layers after an embedding's pooling: task sparse has"):
        replace(TINY, task="sparse", task_settings=SparseSettings(), projections=(Projection(size=3),))
