"""JinaBERT v2, which `transformers` does not have, from a folder to HTTP, against its publications written out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from export.cli import main
from tests.jina_bert_reference import draw_tensors, encode
from tests.service.process import ServerProcess
from tests.tokenizers import TOKENIZERS

TOLERANCE = 1e-5
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "vocab_size": 400,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
MODULES = {
    "modules.json": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode": "cls"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    made = tmp_path_factory.mktemp("jina")
    folder: Path = made / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    for name, content in {"config.json": CONFIG, **MODULES}.items():
        (folder / name).write_text(json.dumps(content))
    save_file(draw_tensors(CONFIG), folder / "model.safetensors")
    TOKENIZERS["wordpiece"]().save(str(folder / "tokenizer.json"))
    assert main([str(folder), "--output", str(made / "artifact"), "--no-explain", "--max-length", "50"]) == 0
    with ServerProcess("service", "--model", str(made / "artifact")) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0


@pytest.mark.slow
def test_vectors_and_attention_are_those_of_its_publications(server: ServerProcess) -> None:
    texts = ["The cats sat on the mats.", "a", "", "lower and lower " * 40]
    body = {"inputs": texts, "normalize": False, "attention": {"layers": "all"}}
    status, _, content = server.request("POST", "/encode", body)
    assert status == 200, content[:500]
    answer = json.loads(content)
    tokenizer = TOKENIZERS["wordpiece"]()
    for text, vector, entry in zip(texts, answer["embeddings"], answer["attention"], strict=True):
        ids = tokenizer.encode(text).ids
        ids = ids if len(ids) <= 50 else [*ids[:49], ids[-1]]
        hidden, attentions = encode(CONFIG, draw_tensors(CONFIG), ids, [0] * len(ids))
        np.testing.assert_allclose(vector, hidden[0], atol=TOLERANCE, rtol=0)  # the first token's
        for found, expected in zip(entry["weights"], attentions, strict=True):
            np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
