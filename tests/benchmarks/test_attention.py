import pytest
import torch

from benchmarks.attention.claims import NETWORK_SIZE, every_head_count
from benchmarks.attention.faithfulness import METHODS, POOLING, left_out_drops, measure, text_places, token_types
from model.config_parts import ClassificationSettings
from model.encoder import Encoder
from tests.model.decomposition.frozen_reference import reference_parts
from tests.networks import draw_weights, vary


def test_every_head_count_runs() -> None:
    with torch.inference_mode():
        (row,) = every_head_count().rows
    assert row["ran"] == NETWORK_SIZE
    assert row["formula_wrong"] == 0
    assert row["largest_difference"] < 1e-5


def test_a_cross_encoders_logit_is_followed_to_the_tokens_of_both_texts() -> None:
    settings = ClassificationSettings(labels=("score",))
    encoder = draw_weights(Encoder(vary(task="classification", task_settings=settings, pooling="cls"))).use("eager")
    pair, one = [2, 7, 9, 3, 11, 8, 3], torch.ones(1)
    assert text_places(pair) == [1, 2, 4, 5]
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    found_types = token_types(encoder, pair)
    assert found_types is not None
    assert torch.equal(found_types, types)
    logit = float(encoder(torch.tensor([pair]), torch.tensor([7]), token_type_ids=types).task_output[0, 0])
    drops = left_out_drops(encoder, pair, one)
    shorter = torch.tensor([[2, 7, 9, 3, 8, 3]]), torch.tensor([6])
    left = float(encoder(*shorter, token_type_ids=types[:, [0, 1, 2, 3, 5, 6]]).task_output[0, 0])
    assert drops[2] == pytest.approx(logit - left, abs=1e-5)
    _, parts = reference_parts(encoder, torch.tensor([pair]), types)
    assert METHODS["through the network"](encoder, pair, one) == pytest.approx(parts[:, 0].numpy(), abs=1e-5)
    assert POOLING not in measure(encoder, [[pair]])
