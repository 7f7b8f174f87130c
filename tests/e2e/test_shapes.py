"""Networks of unusual shape, from a folder of this project's own to the answer over HTTP, against their equations."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from export.cli import main
from model.config import EncoderConfig
from model.encoder import Encoder
from tests.loop_reference import Found, run
from tests.networks import TINY, draw_weights
from tests.service.process import ServerProcess
from tests.task_artifacts import quick_export

TOLERANCE = 1e-5
TEXTS = ["the cat sat on a mat .", "new york", "", "a dog ran on the mats and the cats " * 3]
SHAPES: dict[str, dict[str, Any]] = {
    "heads-differ": {"num_heads": [4, 3, 0, 1], "d_k": 8, "d_v": 5},
    "each-head-a-scalar": {"num_heads": [32, 32], "d_k": 1, "d_v": 1},
    "one-head": {"num_heads": [1, 1], "d_k": 32, "d_v": 32},
    "wide-values": {"num_heads": [4, 2], "d_k": 3, "d_v": 40},
    "no-heads": {"num_heads": [0, 0]},
    "value-stream": {
        "num_heads": [4, 4, 4],
        "value_residual": [[0, 1], [0.5, 0.5], [-0.25, 1.5]],
        "learned_value_residual": True,
        "value_activation": "silu",
        "output_gate": True,
        "head_dropout": 0.3,
    },
}
FAST = ("heads-differ",)


@dataclass(frozen=True)
class Served:
    """A server of one shape, and the network it serves."""

    server: ServerProcess
    encoder: Encoder
    tokenizer: Tokenizer

    def encode(self, **body: Any) -> Any:
        return self.server.post("/encode", {"inputs": TEXTS, **body})

    def run(self, text: str) -> Found:
        ids = self.tokenizer.encode(text).ids
        return run(self.encoder.config, self.encoder.state_dict(), torch.tensor(ids))


def save(encoder: Encoder, tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "polyhead", **encoder.config.to_dict()}))
    save_file(encoder.state_dict(), folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in FAST else [pytest.mark.exhaustive]) for name in SHAPES],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer
) -> Iterator[Served]:
    made = tmp_path_factory.mktemp(request.param)
    encoder = draw_weights(Encoder(EncoderConfig.from_dict({**TINY.to_dict(), **SHAPES[request.param]})))
    folder = save(encoder, tokenizer, made / "folder")
    with quick_export():
        assert main([str(folder), "--output", str(made / "artifact"), "--no-explain"]) == 0
    with ServerProcess("service", "--model", str(made / "artifact")) as process:
        yield Served(process.wait_until_ready(), encoder, tokenizer)
        assert process.stop() == 0


def test_answers_equal_the_equations(served: Served) -> None:
    """Embeddings and the attention of each layer with its own heads; asking for that changes no bit of the former."""
    heads = served.encoder.config.num_heads
    answer = served.encode(**({"attention": {"layers": "all"}} if sum(heads) else {}))
    assert answer["embeddings"] == served.encode()["embeddings"]
    for place, (text, embedding) in enumerate(zip(TEXTS, answer["embeddings"], strict=True)):
        found = served.run(text)
        pooled = found.hidden.mean(dim=0)
        np.testing.assert_allclose(embedding, pooled / pooled.norm(), atol=TOLERANCE, rtol=0)
        if not sum(heads):
            continue
        entry = answer["attention"][place]
        assert entry["heads"] == [list(range(count)) for count in heads]
        for maps, reference in zip(entry["weights"], found.weights, strict=True):
            assert len(maps) == len(reference)
            if maps:
                np.testing.assert_allclose(maps, reference, atol=TOLERANCE, rtol=0)


def test_attention_is_refused_where_it_would_be_wrong(served: Served) -> None:
    config = served.encoder.config
    for form in ("weights", "norms"):
        status, _, answer = served.server.request("POST", "/encode", {"inputs": TEXTS, "attention": {"form": form}})
        if not sum(config.num_heads):
            expected = "the model has no heads"
        elif config.output_gate and form == "norms":
            expected = "would leave out the gates"
        else:
            assert status == 200
            continue
        assert status == 422
        assert expected in json.loads(answer)["error"]["message"]
