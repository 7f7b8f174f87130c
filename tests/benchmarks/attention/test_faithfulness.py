"""Attribution methods on a network whose answer is known, and the figures they are judged by."""

import numpy as np
import pytest
import torch

from benchmarks.attention.faithfulness import left_out_drops, measure, without
from benchmarks.lib.attribution import METHODS, POOLING, text_places, token_types, vector
from model.decomposition.decompose import decompose
from model.encoder import Encoder
from model.tasks.settings import ClassificationSettings
from tests.networks import draw_weights, vary

IDS, OTHER = [2, 7, 9, 11, 8, 3], [2, 5, 9, 12, 3]


@pytest.fixture(scope="module")
def independent() -> Encoder:
    """Without heads tokens never meet: what a token carries is its own final vector."""
    return draw_weights(Encoder(vary(num_heads=(0, 0), type_vocab_size=0))).use("eager")


def test_pooled_final_vectors_add_up_to_the_similarity(independent: Encoder) -> None:
    target = vector(independent, OTHER)
    found = METHODS["pooled final vectors"](independent, IDS, target)
    pooled = independent(torch.tensor([IDS]), torch.tensor([len(IDS)])).pooled[0]
    whole = float(vector(independent, IDS) @ target)
    assert found.sum() / float(pooled.norm()) == pytest.approx(whole, abs=1e-5)


def test_leaving_out_is_the_similarity_without_the_token(independent: Encoder) -> None:
    target = vector(independent, OTHER)
    drops = left_out_drops(independent, IDS, target)
    without_second = float(vector(independent, [2, 7, 11, 8, 3]) @ target)
    assert drops[1] == pytest.approx(float(vector(independent, IDS) @ target) - without_second, abs=1e-6)
    assert without(IDS, [0, 3]) == [2, 9, 11, 3]


def test_every_method_is_measured_and_leaving_out_agrees_with_itself() -> None:
    encoder = draw_weights(Encoder(vary(type_vocab_size=0))).use("eager")
    found = measure(encoder, [(IDS, OTHER), (OTHER, IDS)])
    assert set(found) == {"leaving out itself", *METHODS}
    np.testing.assert_allclose(found["leaving out itself"][:, 0], 1)
    for figures in found.values():
        assert figures.shape == (2, 4)
        assert (figures[:, 1] <= found["leaving out itself"][:, 1] + 1e-6).all()  # nobody finds a larger loss
    assert torch.is_tensor(encoder.embeddings.token.weight)  # the embedding layer is back in its place


def test_scores_that_were_computed_elsewhere_are_judged_alike() -> None:
    encoder = draw_weights(Encoder(vary(type_vocab_size=0))).use("eager")
    pairs = [(IDS, OTHER), (OTHER, IDS)]
    other = METHODS["norms"]
    given = [[other(encoder, ids, vector(encoder, target)) for ids, target in (pair, pair[::-1])] for pair in pairs]
    found = measure(encoder, pairs, {"elsewhere": given})
    np.testing.assert_array_equal(found["elsewhere"], found["norms"])


def test_a_cross_encoders_tokens_add_up_to_its_logit_with_the_biases() -> None:
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
    biases = float(decompose(encoder, torch.tensor([pair]), types).output[-1, 0])
    assert METHODS["through the network"](encoder, pair, one).sum() + biases == pytest.approx(logit, abs=1e-5)
    assert POOLING not in measure(encoder, [[pair]])


def test_integrated_jacobians_add_up_to_the_difference_from_the_reference() -> None:
    encoder = draw_weights(Encoder(vary(num_heads=(2,), type_vocab_size=0))).double().use("eager")
    target = vector(encoder, OTHER)
    with torch.no_grad():
        texts = [IDS, [IDS[0], *[0] * (len(IDS) - 2), IDS[-1]]]
        vectors = [encoder(torch.tensor([ids]), torch.tensor([len(ids)])).pooled[0] for ids in texts]
    found = METHODS["integrated Jacobians"](encoder, IDS, target).sum()
    assert found == pytest.approx(float((vectors[0] - vectors[1]) @ target), rel=0.02)
