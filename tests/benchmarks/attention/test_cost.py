"""The table of costs against figures worked out by hand, and the written weights read back."""

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from benchmarks.attention.cost import PLAIN, latency_table, make_texts
from benchmarks.attention.writing import make_answer, writing_costs
from benchmarks.lib.tokens import tokenize
from model.artifact import Artifact
from service.answers.packing import pack_safetensors
from service.answers.serialize import serialize


def test_ratios_are_taken_within_a_round() -> None:
    rounds = {(8, PLAIN): [[0.001, 0.001, 0.003], [0.01]], (8, "other"): [[0.002], [0.03, 0.03, 0.05]]}
    table = latency_table(rounds, {(8, PLAIN): 10, (8, "other"): 20})
    plain, other = table.rows
    assert (plain["ratio"], plain["spread"]) == (1, "±0%")
    assert math.isclose(other["ratio"], 2.5)  # 2 in the first round, 3 in the second
    assert other["spread"] == "±20%"
    assert (other["p50_ms"], other["p95_ms"], other["requests"], other["body_bytes"]) == (30, 50, 4, 20)


def test_the_weights_written_are_rows_that_sum_to_1() -> None:
    answer = make_answer(5)
    written = load(b"".join(pack_safetensors(answer, is_half=False)))["attention.0"]
    assert written.shape == (12, 12, 5, 5)
    np.testing.assert_allclose(written.sum(axis=-1), 1, rtol=1e-6)
    read = json.loads(asyncio.run(serialize(answer, floats=written.size)))
    np.testing.assert_array_equal(np.array(read["attention"][0]["weights"], dtype=np.float32), written)


def test_bytes_of_each_form() -> None:
    rows = writing_costs([16], rounds=1, seconds=0.01).rows
    megabytes = {row["form"]: row["MB"] for row in rows}
    weights = 12 * 12 * 16 * 16
    floor = {"base64": 16 / 3, "safetensors float32": 4, "safetensors float16": 2}
    for form, each in floor.items():
        assert each * weights < 1e6 * megabytes[form] < each * weights + 10_000  # 768 floats of embedding, labels
    assert megabytes["JSON"] > 8e-6 * weights
    assert all(row["ms"] > 0 for row in rows)


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_length_has_every_form(rounds: int) -> None:
    rows = writing_costs([4, 8], rounds=rounds, seconds=0.01).rows
    assert [row["tokens"] for row in rows] == [4] * 4 + [8] * 4


@pytest.mark.slow
def test_texts_are_no_longer_than_the_model_takes(default_artifact: Path) -> None:
    artifact = Artifact.open(default_artifact)
    texts = make_texts(artifact, [20, 1000, 4000])
    assert {count: [len(row) for row in tokenize(artifact, pair)] for count, pair in texts.items()} == {
        20: [20, 20],
        256: [256, 256],
    }
    assert len({text for pair in texts.values() for text in pair}) == 4
