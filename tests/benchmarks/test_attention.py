import math
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.attention.claim_tables import (
    NETWORK_SIZE,
    every_head_count,
)
from benchmarks.attention.claims import attention_share, fastest, verdicts
from benchmarks.attention.cost import PLAIN, latency_table
from benchmarks.attention.faithfulness import (
    METHODS,
    POOLING,
    left_out_drops,
    measure,
    text_places,
    token_types,
    vector,
    without,
)
from benchmarks.attention.memory import grown_mb, peak, write_graphs
from benchmarks.lib.report import Table
from model.config_parts import ClassificationSettings
from model.decomposition.decompose import decompose
from model.encoder import Encoder
from tests.networks import draw_weights, vary


@pytest.fixture(scope="module")
def head_counts() -> Table:
    with torch.inference_mode():
        return every_head_count()


def test_every_head_count_runs(head_counts: Table) -> None:
    (row,) = head_counts.rows
    assert row["ran"] == NETWORK_SIZE
    assert row["formula_wrong"] == 0
    assert row["largest_difference"] < 1e-5


def test_attentions_share_of_a_layer_bounds_what_pruning_brings() -> None:
    assert attention_share(384, 0) == pytest.approx(1 / 3)
    assert attention_share(384, 512) == pytest.approx(1280 / 2816)
    assert fastest(384, 0, 0.5) == pytest.approx(1.2)
    assert fastest(384, 512, 0) == 1


def test_claims_name_only_what_was_measured(head_counts: Table) -> None:
    claims = [row["claim"] for row in verdicts({}).rows]
    assert claims == ["30 to 40 % of heads can go: as much faster", "maps are small beside the model"]
    with_shapes = verdicts({head_counts.name: head_counts.rows}).rows
    parameters = 4 * NETWORK_SIZE**2 + 4 * NETWORK_SIZE
    assert with_shapes[0]["figure"].startswith(f"{parameters} for each h dividing {NETWORK_SIZE}")
    assert with_shapes[1]["figure"] == f"{NETWORK_SIZE} of {NETWORK_SIZE} counts, 0 off the formula"


def test_the_peak_of_a_run_is_what_it_held() -> None:
    assert 60 < grown_mb(hold_a_megabyte_a_token, 64) < 72
    assert 28 < grown_mb(hold_a_megabyte_a_token, 32) < 40


def hold_a_megabyte_a_token(tokens: int) -> None:
    """Past the allocator, which may have as much left from before."""
    with mmap.mmap(-1, tokens << 20) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1


@pytest.mark.exhaustive
def test_the_standard_operator_holds_scores_and_the_other_does_not(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    scores_mb = 4 * 2048**2 * 4 / 2**20  # 4 heads
    assert 0.9 * scores_mb < peak(tmp_path, "Attention", 2048) < 1.3 * scores_mb
    assert peak(tmp_path, "MultiHeadAttention", 2048) < 0.2 * scores_mb
    assert 0.9 * scores_mb < peak(tmp_path, "none", 2048) < 1.5 * scores_mb  # one layer's, of three
    assert peak(tmp_path, "all", 2048) > 3 * scores_mb  # the answer, at the least


def test_ratios_are_taken_within_a_round() -> None:
    rounds = {(8, PLAIN): [[0.001, 0.001, 0.003], [0.01]], (8, "other"): [[0.002], [0.03, 0.03, 0.05]]}
    table = latency_table(rounds, {(8, PLAIN): 10, (8, "other"): 20})
    plain, other = table.rows
    assert (plain["ratio"], plain["spread"]) == (1, "±0%")
    assert math.isclose(other["ratio"], 2.5)  # 2 in the first round, 3 in the second
    assert other["spread"] == "±20%"
    assert (other["p50_ms"], other["p95_ms"], other["requests"], other["body_bytes"]) == (30, 50, 4, 20)


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
        assert (figures[:, 1] <= found["leaving out itself"][:, 1] + 1e-6).all()  # no one finds a larger loss
    assert torch.is_tensor(encoder.embeddings.token.weight)  # the embedding layer is back in its place


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
