"""`head_mask` of a request: which gates the backend is given, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.conftest import Serve, Served
from tests.service.fake_engine import NUM_HEADS, FakeBackend, write_fake_artifact

HEADS = sum(NUM_HEADS)  # layers of 2, 3 and 0 heads


def gates_of(served: Served, mask: Any, inputs: Any = "the cat") -> Any:
    response = served.encode({"inputs": inputs, "head_mask": mask})
    assert response.status_code == 200, response.text
    return served.backend.batches[-1].head_gates


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[0, 1, 0]], [1, 0, 1, 1, 1]),
        ([[1, 2, 0.25], [0, 0, 0.5]], [0.5, 1, 1, 1, 0.25]),
        ([[-3, -1, 0], [-2, -3, 0.0]], [1, 0, 0, 1, 1]),
        ([[1, 0, 1]], [1, 1, 1, 1, 1]),
        ([[layer, head, 0] for layer, count in enumerate(NUM_HEADS) for head in range(count)], [0] * HEADS),
    ],
)
def test_the_mask_becomes_a_gate_for_every_head(served: Served, mask: Any, expected: list[float]) -> None:
    np.testing.assert_array_equal(gates_of(served, mask), np.array([expected], np.float32), strict=True)


def test_the_mask_is_for_every_input(served: Served) -> None:
    gates = gates_of(served, [[0, 0, 0]], inputs=["the cat", "a dog", "a mat"])
    np.testing.assert_array_equal(gates, np.array([[0, 1, 1, 1, 1]] * 3, np.float32))


@pytest.mark.parametrize("mask", [None, []])
def test_no_mask_is_no_gates(served: Served, mask: Any) -> None:
    assert gates_of(served, mask) is None


@pytest.mark.parametrize(
    ("mask", "param", "message"),
    [
        ("0.1", "head_mask", "expected a list of [layer, head, gate], at most 5"),
        ({"0": 1}, "head_mask", "expected a list of [layer, head, gate], at most 5"),
        ([[0, 0, 0]] * 6, "head_mask", "expected a list of [layer, head, gate], at most 5"),
        ([[0, 0, 0], [0, 1]], "head_mask.1", "expected [layer, head, gate], layer and head whole numbers"),
        ([[0, 0, 0, 0]], "head_mask.0", "expected [layer, head, gate]"),
        ([0, 0, 0], "head_mask.0", "expected [layer, head, gate]"),
        ([[0.0, 0, 0]], "head_mask.0", "expected [layer, head, gate]"),
        ([[True, 0, 0]], "head_mask.0", "expected [layer, head, gate]"),
        ([[0, 0, 1.5]], "head_mask.0", "the gate is no number from 0 (head removed) to 1"),
        ([[0, 0, -0.5]], "head_mask.0", "the gate is no number from 0"),
        ([[0, 0, None]], "head_mask.0", "the gate is no number from 0"),
        ([[0, 0, True]], "head_mask.0", "the gate is no number from 0"),
        ([[3, 0, 0]], "head_mask.0", "the model has 3 layers, valid indices are -3 to 2"),
        ([[-4, 0, 0]], "head_mask.0", "the model has 3 layers"),
        ([[0, 2, 0]], "head_mask.0", "layer 0 has 2 heads, valid indices are -2 to 1"),
        ([[1, -4, 0]], "head_mask.0", "layer 1 has 3 heads, valid indices are -3 to 2"),
        ([[-1, 0, 0]], "head_mask.0", "layer 2 has no heads"),
        ([[0, 1, 0], [-3, -1, 0.5]], "head_mask.1", "layer 0, head 1 is named twice"),
    ],
)
def test_refuses_what_is_no_mask(served: Served, mask: Any, param: str, message: str) -> None:
    response = served.encode({"inputs": "the cat", "head_mask": mask})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert not served.backend.batches


def test_a_gate_that_is_no_number_at_all_is_refused(served: Served) -> None:
    content = b'{"inputs": "the", "head_mask": [[0, 0, NaN]]}'
    response = served.client.post("/encode", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "head_mask.0")


@pytest.mark.parametrize(
    ("asked", "param", "missing"),
    [
        ({"head_mask": [[0, 0, 0]]}, "head_mask", "head_gates"),
        ({"attention": {"form": "norms"}}, "attention.form", "norm_layers"),
    ],
)
def test_an_artifact_from_before_says_so_and_serves_the_rest(
    serve: Serve, tmp_path: Path, asked: dict[str, Any], param: str, missing: str
) -> None:
    old = write_fake_artifact(tmp_path / "old", inputs=("input_ids", "lengths", "attention_layers"))
    served = serve("--model", str(old), backend=FakeBackend())
    response = served.encode({"inputs": "the cat", **asked})
    assert response.status_code == 422
    assert response.json()["error"]["param"] == param
    assert f"its graph has no {missing}); export the model again" in response.json()["error"]["message"]
    assert served.encode({"inputs": "the cat", "head_mask": [], "attention": {}}).status_code == 200


def test_the_description_says_what_a_mask_is(served: Served) -> None:
    schema = served.client.get("/openapi.json").json()["components"]["schemas"]["EncodeRequest"]["properties"]
    entry = schema["head_mask"]["anyOf"][0]["items"]
    assert [part["type"] for part in entry["prefixItems"]] == ["integer", "integer", "number"]
