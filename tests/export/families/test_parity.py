"""Every family's encoder equals `transformers` on random weights, read from a folder that `transformers` saved."""

import pytest
import torch

from tests.family_models import (
    MODELS,
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
