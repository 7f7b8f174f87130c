"""JinaBERT v2 against its publications written out; see `tests.jina_bert_reference`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from export.errors import UnsupportedModel
from model.encoder import Encoder
from tests.family_models import read
from tests.jina_bert_reference import classify, draw_tensors, encode
from tests.tokenizers import TOKENIZERS

TOLERANCE = 1e-5
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "vocab_size": 400,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 60,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
NORMED = {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}}


def save(folder: Path, config: dict[str, Any], **more: np.ndarray[Any, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(draw_tensors(config) | more, folder / "model.safetensors")
    TOKENIZERS["wordpiece"]().save(str(folder / "tokenizer.json"))
    return folder


def compare(encoder: Encoder, config: dict[str, Any], lengths: list[int], sequence: int) -> None:
    generator = np.random.default_rng(sequence)
    ids, types = (generator.integers(0, top, (len(lengths), sequence)) for top in (400, 2))
    tensors = draw_tensors(config)
    with torch.inference_mode():
        inputs = torch.tensor(ids), torch.tensor(lengths)
        eager = encoder.use("eager")(*inputs, token_type_ids=torch.tensor(types))
        sdpa = encoder.use("sdpa")(*inputs, token_type_ids=torch.tensor(types))
    for row, length in enumerate(lengths):
        hidden, attentions = encode(config, tensors, list(ids[row, :length]), list(types[row, :length]))
        for found in (eager, sdpa):
            np.testing.assert_allclose(found.last_hidden_state[row, :length], hidden, atol=TOLERANCE, rtol=0)
        for weights, expected in zip(eager.attentions, attentions, strict=True):
            np.testing.assert_allclose(weights[row, :, :length, :length], expected, atol=TOLERANCE, rtol=0)
            assert not weights[row, :, :length, length:].any()


@pytest.mark.parametrize(
    "change", [{}, {"num_attention_heads": 12}, {"num_attention_heads": 3}, {"feed_forward_type": "reglu"}, NORMED]
)
def test_equals_its_publications_written_out(tmp_path: Path, change: dict[str, Any]) -> None:
    config = {**CONFIG, **change}
    encoder = read(save(tmp_path, config)).encoder
    for lengths, sequence in (([7], 7), ([1], 1), ([5, 2, 1], 5), ([3, 9, 4], 14), ([50, 1], 60)):
        compare(encoder, config, lengths, sequence)


def test_a_reranker_scores_by_berts_layers(tmp_path: Path) -> None:
    config = {**CONFIG, **NORMED, "architectures": ["JinaBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    encoder, ids, types = read(save(tmp_path, config)).encoder, [2, 9, 3, 7, 3], [0, 0, 0, 1, 1]
    hidden, _ = encode(config, draw_tensors(config), ids, types)
    with torch.inference_mode():
        found = encoder(torch.tensor([ids]), torch.tensor([5]), token_type_ids=torch.tensor([types]))
    np.testing.assert_allclose(found.task_output[0], classify(draw_tensors(config), hidden), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_type": "original"}, "feed_forward_type 'original': one of geglu, reglu is supported"),
        ({"pruned_heads": {"0": [1], "1": [1], "2": [1]}}, "pruned_heads .* None, {} is supported"),
        ({"position_embedding_type": "rope"}, "says feed_forward_type, which may change the network"),
    ],
)
def test_refuses_settings_it_would_not_reproduce(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path)


def test_refuses_the_norms_of_a_variant_that_no_code_names(tmp_path: Path) -> None:
    (tmp_path / "normed").mkdir()
    folder = save(tmp_path / "normed", CONFIG | NORMED)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UnsupportedModel, match="do not fit the configuration, such as layers.0.attention.key_norm"):
        read(folder)


def test_takes_its_own_publications_code_for_the_network_written_here(tmp_path: Path) -> None:
    own = {"AutoConfig": "jinaai/x--configuration_bert.JinaBertConfig", "AutoModel": "jinaai/x--modeling.JinaBertModel"}
    compare(read(save(tmp_path, {**CONFIG, "auto_map": own})).encoder, CONFIG, [5, 2], 5)
