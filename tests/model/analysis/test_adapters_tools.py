"""The adapters against the tools themselves; they are no dependency of ours, so if they are missing this is skipped.

To run it: an environment with pytest, orjson, torch, bertviz and circuitsvis, and `pytest --noconftest` on this file.
"""

import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from model.analysis.adapters import to_bertviz, to_circuitsvis
from model.analysis.arrays import Float32Array
from tests.model.analysis.answers import answer, whole_answer
from tests.model.analysis.maps import draw_maps

# bertviz leaves the files of its scripts to the garbage collector, which warns.
UNCLOSED = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
TOKENS = ["[CLS]", "un", "##believ", "##able", "[SEP]"]


def drawn(*heads: int) -> list[Float32Array]:
    generator = np.random.default_rng(0)
    return [draw_maps(generator, count, 5, 5) for count in heads]


@pytest.fixture(scope="module")
def bertviz() -> Any:
    return pytest.importorskip("bertviz", reason="bertviz is not installed: it needs IPython, we do not")


@pytest.fixture(scope="module")
def circuitsvis() -> Any:
    pytest.importorskip("circuitsvis", reason="circuitsvis is not installed: it needs torch at run time, we do not")
    return pytest.importorskip("circuitsvis.attention")


def shown(html: Any) -> dict[str, Any]:
    """What BertViz' page holds for its script."""
    params = re.search(r"const params = (\{.*\});? *// HACK", html.data)
    assert params
    read: dict[str, Any] = json.loads(params.group(1))
    return read


@UNCLOSED
@pytest.mark.parametrize("name", ["head_view", "model_view"])
def test_bertviz_shows_a_whole_answer(bertviz: Any, name: str) -> None:
    maps = drawn(3, 3)
    view = to_bertviz(whole_answer(TOKENS, maps))
    tensors = [torch.from_numpy(layer) for layer in view.attention]
    page = shown(getattr(bertviz, name)(tensors, view.tokens, include_layers=view.include_layers, html_action="return"))
    assert page["include_layers"] == [0, 1]
    assert page["attention"][0]["left_text"] == page["attention"][0]["right_text"] == TOKENS
    np.testing.assert_array_equal(np.array(page["attention"][0]["attn"], dtype=np.float32), np.stack(maps))


@UNCLOSED
@pytest.mark.parametrize("name", ["head_view", "model_view"])
def test_bertviz_shows_some_layers_and_heads_under_their_numbers(bertviz: Any, name: str) -> None:
    maps = drawn(2, 2)
    view = to_bertviz(answer(TOKENS, maps, layers=[5, 2], heads=[[3, 1], [3, 1]]))
    tensors = [torch.from_numpy(layer) for layer in view.attention]
    page = shown(getattr(bertviz, name)(tensors, view.tokens, include_layers=view.include_layers, html_action="return"))
    assert page["include_layers"] == [2, 5]
    found = np.array(page["attention"][0]["attn"], dtype=np.float32)
    np.testing.assert_array_equal(found[:, [3, 1]], np.stack([maps[1], maps[0]]))
    assert not found[:, [0, 2]].any()


@UNCLOSED
def test_bertviz_shows_layers_with_different_heads(bertviz: Any) -> None:
    view = to_bertviz(whole_answer(TOKENS, drawn(1, 0, 3)))
    page = shown(
        bertviz.head_view([torch.from_numpy(layer) for layer in view.attention], view.tokens, html_action="return")
    )
    assert np.array(page["attention"][0]["attn"]).shape == (3, 3, 5, 5)


def test_circuitsvis_shows_each_layer(circuitsvis: Any) -> None:
    maps = drawn(3, 2)
    for layer, view in enumerate(to_circuitsvis(answer(TOKENS, maps, layers=[0, 4], heads=[[0, 1, 2], [7, 1]]))):
        code = circuitsvis.attention_heads(**view._asdict()).show_code()
        props = re.search(r"AttentionHeads,\s*(\{.*\})\s*\)", code, re.DOTALL)
        assert props
        page = json.loads(props.group(1))
        np.testing.assert_array_equal(np.array(page["attention"], dtype=np.float32), maps[layer])
        assert page["tokens"] == TOKENS
        assert page["attentionHeadNames"] == [["L0H0", "L0H1", "L0H2"], ["L4H7", "L4H1"]][layer]
        assert page["maskUpperTri"] is False
