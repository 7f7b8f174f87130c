import json
from dataclasses import replace
from typing import Any

import pytest

from model.config import EncoderConfig
from model.config_parts import (
    ClassificationSettings,
    ConfigError,
    MultiVectorSettings,
    Projection,
    SparseSettings,
    TaskSettings,
)
from tests.networks import TINY

CONFIG = EncoderConfig(
    vocab_size=100,
    hidden_size=32,
    num_heads=(4, 0, 3),
    d_k=8,
    d_v=5,
    intermediate_size=64,
    max_positions=16,
    type_vocab_size=2,
    projections=(Projection(size=7),),
)
DISENTANGLED = {"attention_positions": "disentangled", "position_scores": ["content_to_position"]}
TABLE = {"num_heads": [1], "max_positions": 10**6}
SCALED = {"kind": "yarn", "factor": 2.0, "original_positions": 8}
MIXES = [(0, 1), (0.5, 0.5), (-0.25, 1.5)]


def test_survives_a_round_trip_through_json_types() -> None:
    assert EncoderConfig.from_dict(CONFIG.to_dict()) == CONFIG
    assert (CONFIG.num_layers, CONFIG.embedding_size) == (3, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": []}, "num_heads is empty"),
        ({"num_heads": [4, -1]}, r"num_heads\[1\] is -1"),
        ({"num_heads": [33]}, "at most hidden_size = 32 heads"),
        ({"d_k": 0}, "d_k is 0: expected a whole number of at least 1"),
        ({"activation": "softplus"}, "activation is 'softplus': expected one of gelu"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"num_key_value_heads": [2]}, "num_key_value_heads has 1 layers, num_heads 3"),
        ({"num_key_value_heads": [3, 0, 3]}, r"num_heads\[0\] is 4: expected a multiple of its 3 key and value heads"),
        ({"num_key_value_heads": [0, 0, 3]}, r"num_key_value_heads\[0\] is 0: expected a whole number of at least 1"),
        ({"num_key_value_heads": [5, 0, 3]}, r"num_key_value_heads\[0\] is 5: .* at most 4"),
        ({"query_groups": [[4], [], [3]]}, "query_groups has 3 layers: expected those of num_key_value_heads"),
        (
            {"num_key_value_heads": [2, 0, 1], "query_groups": [[3, 2], [], [3]]},
            r"query_groups\[0\] is \[3, 2\]: expected 2 that sum to 4",
        ),
        ({"score_scale": -1}, "score_scale is -1: expected a positive number"),
        ({"sandwich_norm": True}, "sandwich_norm is a second norm behind those of pre_norm: set both"),
        ({"causal": 1}, "causal is 1: expected true or false"),
        ({"shared_layers": [0, 0, 1]}, r"shared_layers is \[0, 0, 1\]: expected 3 layers, of each the first alike"),
        ({"shared_layers": [0, 0, 0]}, "layers of one weight need the same heads"),
        ({"task": "sparse", "task_settings": [1]}, "incomplete encoder configuration"),
        ({**DISENTANGLED, "causal": True}, "they go with neither causal nor local_layers"),
        ({**DISENTANGLED, "local_layers": [0], "window": 1}, "they go with neither causal nor local_layers"),
        ({"rope_scaling": SCALED, "rope_divisor": 2.0}, "rope_divisor and rope_scaling: set one of them"),
        ({"num_heads": [1] * 10**4}, "num_heads has 10000 layers"),
        ({**TABLE, "attention_positions": "rotary", "d_k": 1024}, "1024000000 values in a table"),
        ({**TABLE, "positions": "sinusoidal", "hidden_size": 1024}, "1024000000 values in a table"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*: expected a positive number"),
        ({"value_residual": [(0, 1), (10**400, 1), (1, 0)]}, r"value_residual\[1\] is"),
        ({"projections": [{"size": 10**9}]}, "projections.size is 1000000000"),
        ({"head_dropout": 1.0}, "head_dropout is 1.0"),
        ({"head_dropout": True}, "head_dropout is True"),
        ({"learned_value_residual": True}, "learned_value_residual needs value_residual"),
        ({"value_residual": [(0, 1)]}, r"expected 3 pairs, the first layer's \(0, 1\)"),
        ({"value_residual": [(1, 0)] * 3}, r"expected 3 pairs, the first layer's \(0, 1\)"),
        ({"value_residual": [(0, 1), (1,), (1, 0)]}, r"value_residual\[1\] is \(1,\): expected a list of 2"),
        ({"value_residual": [(0, 1), (1, float("nan")), (1, 0)]}, r"value_residual\[1\]"),
        ({"value_residual": MIXES}, "all need as many, not 0"),
        (
            {"task": "sparse", "task_settings": {}, "projections": [{"size": 3}]},
            "projections are dense layers after an embedding's pooling: task sparse has",
        ),
    ],
)
def test_refuses_a_configuration_that_describes_no_network(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict({**CONFIG.to_dict(), **change})


EXAMPLES: list[tuple[str, TaskSettings, int]] = [
    ("classification", ClassificationSettings(labels=("no", "yes"), dense_norm=True), 2),
    ("sparse", SparseSettings(tied=False, saturations=2), 48),
    ("multi_vector", MultiVectorSettings(size=7, skipped_ids=(3, 5), query_length=32), 7),
]


def with_task(task: str, settings: TaskSettings | None) -> EncoderConfig:
    return replace(TINY, task=task, task_settings=settings)  # type: ignore[arg-type]  # the test is of wrong ones


def test_a_task_survives_json() -> None:
    for task, settings, size in EXAMPLES:
        config = with_task(task, settings)
        assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert config.output_size == size
    written = TINY.to_dict()  # what was written before there were tasks, with at most one projection
    del written["task"], written["task_settings"], written["projections"]
    for one, projections in (({"size": 7}, (Projection(size=7),)), (None, ())):
        config = EncoderConfig.from_dict({**written, "projection": one})
        assert (config.task, config.task_settings, config.projections) == ("embedding", None, projections)


def test_a_task_comes_with_its_own_settings() -> None:
    expected = "expected one of embedding, classification, token_classification, sparse"
    for task, settings, message in (
        ("ranking", None, f"task is 'ranking': {expected}"),
        ("sparse", None, "task sparse with task_settings NoneType: expected SparseSettings"),
        ("embedding", SparseSettings(), "task embedding with task_settings SparseSettings: expected NoneType"),
        ("sparse", MultiVectorSettings(size=3), "task sparse with task_settings MultiVectorSettings: expected Sparse"),
    ):
        with pytest.raises(ConfigError, match=message):
            with_task(task, settings)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("classification", {"labels": []}, "expected at least one text"),
        ("classification", {"labels": [1]}, r"task_settings.labels\[0\] is 1: expected a text"),
        ("classification", {"labels": ["a", "a"]}, "expected names that differ"),
        ("classification", {"activation": "tanh"}, "activation is 'tanh': expected one of identity, sigmoid, softmax"),
        ("classification", {"dense_norm": 1}, "dense_norm is 1: expected true or false"),
        ("sparse", {"saturations": 3}, "saturations is 3: expected a whole number of at least 1 and at most 2"),
        ("multi_vector", {"size": 0}, "size is 0"),
        ("multi_vector", {"skipped_ids": [-1]}, r"skipped_ids\[0\] is -1"),
        ("multi_vector", {"skipped_in": ["answer"]}, r"skipped_in\[0\] is 'answer': expected one of query, document"),
        ("multi_vector", {"query_expansion": {"token_id": 10**6, "length": 4}}, "query_expansion.token_id is 1000000"),
        ("multi_vector", {"query_expansion": {"token_id": 1, "length": 10**4}}, "query_expansion.length is 10000"),
        ("embedding", {}, "task_settings for task 'embedding': only classification, token_classification, sparse"),
    ],
)
def test_settings_that_describe_no_layers_are_refused(task: str, change: dict[str, Any], message: str) -> None:
    written = {name: dict(with_task(name, settings).to_dict()["task_settings"]) for name, settings, _ in EXAMPLES}
    settings = {**written.get(task, {}), **change}
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict({**TINY.to_dict(), "task": task, "task_settings": settings})
