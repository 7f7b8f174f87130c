"""Every family's encoder equals `transformers` on random weights, read from a folder that `transformers` saved."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from model.encoder import Encoder, EncoderOutput
from tests.family_models import MODELS, FamilyModel, draw, ids_and_types, project, read, save

TOLERANCE = 1e-5
BATCHES = [([1], 0), ([3, 9, 4], 5), ([40, 1], 0)]  # lengths, and tokens of padding behind the longest


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FamilyModel, PreTrainedModel, Encoder]:
    model: FamilyModel = request.param
    theirs = draw(model)
    return model, theirs, read(save(theirs, model, tmp_path_factory.mktemp(model.name))).encoder


def run_theirs(theirs: PreTrainedModel, ids: Tensor, types: Tensor, lengths: list[int]) -> Any:
    """`transformers` on right-padded rows; padding has the padding's own id, as its tokenizers write it."""
    mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
    padded = ids.masked_fill(mask == 0, theirs.config.pad_token_id or 0)
    named = {"token_type_ids": types} if getattr(theirs.config, "type_vocab_size", 0) > 1 else {}
    with torch.inference_mode():
        return theirs(padded, attention_mask=mask, output_attentions=True, **named)


def run_ours(encoder: Encoder, ids: Tensor, types: Tensor, lengths: list[int]) -> EncoderOutput:
    with torch.inference_mode():
        output: EncoderOutput = encoder(
            ids, torch.tensor(lengths), token_type_ids=types if encoder.config.type_vocab_size else None
        )
    return output


@pytest.mark.parametrize(("lengths", "padding"), BATCHES, ids=str)
def test_hidden_states_and_attention_equal_transformers(
    pair: tuple[FamilyModel, PreTrainedModel, Encoder], lengths: list[int], padding: int
) -> None:
    model, theirs, ours = pair
    assert ours.config.max_positions == model.longest  # without those that are never read
    lengths = [min(length, model.longest) for length in lengths]
    ids, types = ids_and_types(model, len(lengths), min(max(lengths) + padding, model.longest))
    expected = run_theirs(theirs, ids, types, lengths)
    eager, sdpa = (run_ours(ours.use(name), ids, types, lengths) for name in ("eager", "sdpa"))
    for row, length in enumerate(lengths):
        for found in (eager, sdpa):
            hidden = project(ours, found.last_hidden_state)[row, :length], expected.last_hidden_state[row, :length]
            torch.testing.assert_close(*hidden, atol=TOLERANCE, rtol=0)
        for weights, reference in zip(eager.attentions, expected.attentions, strict=True):
            assert weights is not None
            torch.testing.assert_close(weights[row, :, :length], reference[row, :, :length], atol=TOLERANCE, rtol=0)
