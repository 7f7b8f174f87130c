from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr

from export.checkpoint import Checkpoint
from export.heads.corpus import Pairs, tokenize_pairs
from export.heads.importance import drift, embed, embed_without_each, jacobian, loss_gradient, spearman_loss
from export.heads.intervals import estimate, holm, p_above, wilson
from export.heads.statistics import Capture
from export.similarity import pair_cosines, row_cosines
from export.texts import TextBatch, batches, tokenize
from model.encoder import Encoder
from model.packing import packing
from tests.planted import draw_texts


def test_cosines_are_scipys_and_a_vector_of_zeros_has_none() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    b[4] = 0
    found = row_cosines(a, b)
    np.testing.assert_allclose(found[:4], [1 - cosine(*rows) for rows in zip(a[:4], b[:4], strict=True)], atol=1e-6)
    assert np.isnan(found[4])
    np.testing.assert_array_equal(pair_cosines(np.concatenate([a, b])), found)


def test_mean_and_deviation_are_numpys(generator: np.random.Generator) -> None:
    values = generator.normal(1e3, 1, (50, 3))
    found = estimate(values)
    assert found is not None
    np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.sd, values.std(axis=0, ddof=1), rtol=1e-9)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    np.testing.assert_allclose((found.low, found.high), (expected.low, expected.high), rtol=1e-9)


def test_texts_that_do_not_say_do_not_count() -> None:
    found = estimate([*np.array([[1.0, np.nan], [3.0, np.nan], [5.0, 7.0]]), None])
    assert found is not None
    assert found.n.tolist() == [3, 1]
    assert found.mean.tolist() == [3, 7]
    assert np.isnan(found.low[1])
    assert p_above(found, 0).tolist() == [pytest.approx(stats.ttest_1samp([1, 3, 5], 0, alternative="greater")[1]), 1]
    assert estimate([]) is None


def test_p_is_students_and_a_sign_test_where_nothing_varies(generator: np.random.Generator) -> None:
    values = generator.normal(0.55, 0.1, (30, 4))
    found = estimate(values)
    assert found is not None
    np.testing.assert_allclose(p_above(found, 0.5), stats.ttest_1samp(values, 0.5, alternative="greater")[1], rtol=1e-9)
    constant = estimate(np.full((10, 2), [0.9, 0.1]))
    assert constant is not None
    np.testing.assert_allclose(p_above(constant, 0.5), [0.5**10, 1])


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04, made monotone: .04 .06 .06 .06.
    np.testing.assert_allclose(holm(np.array([[0.03, 0.01], [0.04, 0.02]])), [[0.06, 0.04], [0.06, 0.06]])
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1]


@pytest.mark.parametrize(("hits", "n"), [(0, 20), (7, 20), (20, 20), (1, 1000)])
def test_wilson_is_scipys(hits: int, n: int) -> None:
    low, high = wilson(np.array([float(hits)]), n, np.ones(1))
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_cases_that_hang_together_widen_the_interval() -> None:
    narrow, wide = wilson(np.array([50.0]), 100, np.ones(1)), wilson(np.array([50.0]), 100, np.array([4.0]))
    assert wide[1][0] - wide[0][0] == pytest.approx(2 * (narrow[1][0] - narrow[0][0]), rel=0.06)


HEADS = 8  # of the tiny network, over all layers


def slopes(function: Callable[[torch.Tensor], np.ndarray]) -> np.ndarray:
    """Of what a function makes of all heads' gates, by each gate at 1, [H, ...]."""
    steps = 1e-5 * torch.eye(HEADS, dtype=torch.float64)
    return np.stack([(function(1 + step) - function(1 - step)) / 2e-5 for step in steps])


def test_the_jacobian_is_the_slope_of_the_embedding(tiny_checkpoint: Checkpoint) -> None:
    encoder = tiny_checkpoint.encoder.double()
    texts = tokenize(draw_texts(10), tiny_checkpoint.tokenizer, 40)
    moved = np.linalg.norm(slopes(lambda gates: embed(encoder, texts, gates)), axis=-1)  # [H, texts]
    found = jacobian(encoder, texts)
    assert found is not None
    # 16 random directions of 32: each text's square has a standard error of a third, ten texts' mean of a tenth.
    np.testing.assert_allclose(found.mean, np.sqrt((moved**2).mean(axis=1)), rtol=0.35)
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()


def test_the_loss_gradient_is_the_slope_of_the_loss(tiny_checkpoint: Checkpoint) -> None:
    encoder = tiny_checkpoint.encoder.double()
    ratings = np.arange(10.0)
    pairs = Pairs(tuple(draw_texts(10, seed=3)), tuple(draw_texts(10, seed=4)), ratings)
    tokenized = tokenize_pairs(pairs, tiny_checkpoint.tokenizer, 40)

    def losses(gates: torch.Tensor) -> np.ndarray:
        embeddings = embed(encoder, tokenized.texts, gates)
        return np.asarray(((embeddings[:10] * embeddings[10:]).sum(axis=1) - ratings / 9) ** 2)

    found = loss_gradient(encoder, tokenized)
    assert found is not None
    np.testing.assert_allclose(found.mean, np.abs(slopes(losses)).mean(axis=1), rtol=1e-4)


def attend(encoder: Encoder, batch: TextBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The first layer's weights [B, H, S, S] and values [T, H*V], from what enters it."""
    state = encoder.state_dict()
    tokens = packing(batch.lengths, batch.input_ids.shape[1])
    hidden = encoder.embeddings(tokens.pack(batch.input_ids), tokens.positions(), None)
    values = hidden @ state["layers.0.attention.value.weight"].T + state["layers.0.attention.value.bias"]
    weights = encoder.use("eager")(batch.input_ids, batch.lengths).attentions[0]
    assert weights is not None
    return weights, values


def test_output_norms_are_those_of_each_heads_share(tiny_checkpoint: Checkpoint) -> None:
    encoder = tiny_checkpoint.encoder
    texts = tokenize(draw_texts(4), tiny_checkpoint.tokenizer, 40)
    output = encoder.state_dict()["layers.0.attention.output.weight"]
    for batch in batches(texts, HEADS):
        attentions, values = attend(encoder, batch)
        starts = np.cumsum([0, *batch.lengths.tolist()])
        for row, heads in enumerate(Capture(encoder).run(batch)):
            length = int(batch.lengths[row])
            value = values[starts[row] : starts[row + 1]].view(length, 4, 5)
            for head in range(4):
                projection = output[:, 5 * head : 5 * head + 5].T  # [V, D]
                moved = value[:, head] @ projection  # [n, D]
                share = attentions[row, head, :length, :length] @ moved
                np.testing.assert_allclose(heads.value_norms[head], moved.norm(dim=1), rtol=1e-4)
                np.testing.assert_allclose(heads.output_norms[head], share.norm(dim=1), rtol=1e-4)


def test_the_loss_of_spearman_is_in_points(generator: np.random.Generator) -> None:
    ratings = generator.integers(0, 6, 80).astype(float)
    similarities = ratings + generator.normal(0, 2, 80)
    without = np.stack([similarities, generator.normal(size=80), np.zeros(80)], axis=1)
    expected = [spearmanr(column, ratings)[0] for column in without.T[:2]] + [0.0]
    found = spearman_loss(similarities, without, ratings)
    np.testing.assert_allclose(found.mean, 100 * (expected[0] - np.array(expected)), atol=1e-9)
    assert found.low[0] == found.high[0] == 0
    assert found.low[1] < found.mean[1] < found.high[1]


def test_leaving_out_moves_the_embedding_by_its_cosine_and_layers_below_run_once(tiny_checkpoint: Checkpoint) -> None:
    encoder = tiny_checkpoint.encoder
    texts = tokenize(draw_texts(12), tiny_checkpoint.tokenizer, 40)
    runs: list[int] = []
    hook = encoder.get_submodule("layers.0.attention.query").register_forward_hook(lambda *_: runs.append(1))
    found = list(embed_without_each(encoder, texts))
    hook.remove()
    assert len(runs) == 4 + 2  # for each of its own heads, then once for the second layer's and once for the last's
    whole = embed(encoder, texts)
    for head, without in enumerate(found):
        gates = torch.ones(1, HEADS)
        gates[0, head] = 0
        np.testing.assert_array_equal(without, embed(encoder, texts, gates[0]))
        for row, text in enumerate(texts):
            alone = torch.from_numpy(text.ids)[None], torch.tensor([len(text.ids)])
            pooled = encoder.use("eager")(*alone, head_gates=gates).pooled[0].double()
            expected = 1 - torch.cosine_similarity(pooled, torch.from_numpy(whole[row]), dim=0)
            assert drift(without, whole)[row] == pytest.approx(float(expected), abs=1e-6)
    assert "forward" not in vars(encoder.layers[0])
