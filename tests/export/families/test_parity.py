"""Every family's encoder equals `transformers` on random weights, read from a folder that `transformers` saved.

And encoders made from decoders: left padding, scaled rotary positions, the text part of a larger network.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.family_models import (
    MODELS,
    NAMED,
    FamilyModel,
    Pair,
    draw,
    ids_and_types,
    project,
    read,
    run_ours,
    run_theirs,
    save,
)

TOLERANCE = 1e-5
BATCHES = [([1], 0), ([3, 9, 4], 5), ([40, 1], 0)]  # lengths, and tokens of padding behind the longest


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model: FamilyModel = request.param
    theirs = draw(model)
    return model, theirs, read(save(theirs, model, tmp_path_factory.mktemp(model.name))).encoder


@pytest.mark.parametrize(("lengths", "padding"), BATCHES, ids=str)
def test_hidden_states_and_attention_equal_transformers(pair: Pair, lengths: list[int], padding: int) -> None:
    model, theirs, ours = pair
    assert ours.config.max_positions == model.longest  # without those that are never read
    lengths = [min(length, model.longest) for length in lengths]
    ids, types = ids_and_types(model, len(lengths), min(max(lengths) + padding, model.longest))
    expected = run_theirs(theirs, ids, types, lengths, output_attentions=True)
    eager, sdpa = (run_ours(ours.use(name), ids, types, lengths) for name in ("eager", "sdpa"))
    for row, length in enumerate(lengths):
        for found in (eager, sdpa):
            hidden = project(ours, found.last_hidden_state)[row, :length], expected.last_hidden_state[row, :length]
            torch.testing.assert_close(*hidden, atol=TOLERANCE, rtol=0)
        for weights, reference in zip(eager.attentions, expected.attentions, strict=True):
            assert weights is not None
            torch.testing.assert_close(weights[row, :, :length], reference[row, :, :length], atol=TOLERANCE, rtol=0)


LONG = 320


def test_what_the_original_pads_at_the_left_is_padded_at_the_right_here(tmp_path: Path) -> None:
    model = NAMED["qwen3"]
    theirs = draw(model)
    ours = read(save(theirs, model, tmp_path)).encoder
    ids, _ = ids_and_types(model, 3, 20)
    lengths = [20, 11, 1]
    mask = torch.arange(20) >= 20 - torch.tensor(lengths)[:, None]
    left = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        left[row, 20 - length :] = ids[row, :length]
    with torch.inference_mode():
        expected = theirs(left, attention_mask=mask.long()).last_hidden_state[:, -1]
        found = ours(ids, torch.tensor(lengths)).last_hidden_state
    last = torch.stack([found[row, length - 1] for row, length in enumerate(lengths)])
    torch.testing.assert_close(last, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80},
        {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 64, "beta_fast": 4, "truncate": False},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 40, "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ],
    ids=str,
)
def test_scaled_rotary_positions_are_those_of_transformers(tmp_path: Path, parameters: dict[str, Any]) -> None:
    model = NAMED["eurobert"]
    theirs = draw(model, max_position_embeddings=LONG, head_dim=16, rope_parameters={"rope_theta": 5e3, **parameters})
    ours = read(save(theirs, model, tmp_path)).encoder
    ids, _ = ids_and_types(model, 1, LONG)
    with torch.inference_mode():
        expected = theirs(ids).last_hidden_state
        found = ours(ids, torch.tensor([LONG])).last_hidden_state
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_the_text_part_of_a_network_for_images_and_sound_is_read(tmp_path: Path) -> None:
    places = {"image_token_id": 7, "audio_token_id": 9, "video_token_id": 11}
    model = NAMED["gemma2"]
    whole = replace(model, model_type="embedding_gemma2", settings={"text_config": model.settings, **places})
    theirs = draw(whole)
    ours = read(save(theirs, whole, tmp_path)).encoder
    ids = torch.tensor([[5, 7, 30, 9, 8, 11, 40]])
    with torch.inference_mode():
        expected = theirs(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = ours(ids, torch.tensor([7]))
    torch.testing.assert_close(project(ours, found.last_hidden_state), expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(found.pooled, expected.mean(dim=1), atol=TOLERANCE, rtol=0)
