from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.batching.jobs import Job, collate, separate
from service.inference.backend import Batch, BatchOutput, Cancellation

HEADS = {0: 3, 2: 0, 4: 1}  # by layer; a layer may have no heads


def job(ids: list[int], *, layers: tuple[int, ...] = (), wants_tokens: bool = False) -> Job:
    return Job(np.array(ids, dtype=np.int64), layers, wants_tokens)


def together(jobs: list[Job]) -> Batch:
    return collate(jobs, Cancellation())


def compute(batch: Batch) -> BatchOutput:
    """Outputs that name where each number came from: NaN wherever a row or column is padding."""
    texts, longest = batch.input_ids.shape
    hidden = np.full((texts, longest, 2), np.nan, dtype=np.float32)
    shapes = {layer: (texts, HEADS[layer], longest, longest) for layer in batch.attention_layers}
    attentions = {layer: np.full(shape, np.nan, dtype=np.float32) for layer, shape in shapes.items()}
    for row, length in enumerate(batch.lengths):
        ids = batch.input_ids[row, :length]
        hidden[row, :length] = ids[:, None]
        for layer, weights in attentions.items():
            for head in range(HEADS[layer]):
                weights[row, head, :length, :length] = 1000 * layer + 100 * head + ids[:, None] + ids[None, :] / 100
    pooled = np.array([[row.sum(), len(row)] for row in batch.input_ids], dtype=np.float32)
    return BatchOutput(pooled, hidden, attentions)


def test_texts_with_gates_and_without_ride_together() -> None:
    masked = Job(np.array([1, 2]), head_gates=np.array([0.0, 1.0, 0.5], dtype=np.float32))
    batch = together([job([5]), masked, job([7, 8, 9])])
    assert batch.head_gates is not None
    assert batch.head_gates.tolist() == [[1, 1, 1], [0, 1, 0.5], [1, 1, 1]]
    assert together([job([5]), job([6])]).head_gates is None
    alone = together([masked]).head_gates
    assert alone is not None
    assert alone.tolist() == [[0, 1, 0.5]]


def test_norms_go_to_the_texts_that_want_them_without_padding() -> None:
    layers = (0, 2)
    jobs = [job([5], layers=layers), Job(np.array([6, 7, 8]), layers, wants_norms=True)]
    batch = together(jobs)
    assert batch.wants_norms
    norms = {0: np.arange(18, dtype=np.float32).reshape(2, 3, 3), 2: np.zeros((0, 0, 0), np.float32)}
    output = replace(compute(batch), value_norms=norms)
    without, asked = separate(jobs, output, queue_seconds=[0, 0], inference_seconds=0)
    assert without.value_norms == {}
    assert asked.value_norms[0].tolist() == norms[0][1].tolist()
    assert asked.value_norms[2].shape == (0, 3)


def test_several_texts_are_padded_on_the_right() -> None:
    batch = together([job([5], layers=(1,)), job([6, 7, 8], layers=(1,), wants_tokens=True), job([9, 9], layers=(1,))])
    assert batch.input_ids.tolist() == [[5, 0, 0], [6, 7, 8], [9, 9, 0]]
    assert batch.lengths.tolist() == [1, 3, 2]
    assert {str(batch.input_ids.dtype), str(batch.lengths.dtype)} == {"int64"}
    assert (batch.attention_layers, batch.wants_tokens) == ((1,), True)


@given(
    texts=st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=6), min_size=1, max_size=5),
    layers=st.sampled_from([(), (0,), (0, 2, 4)]),
    wants=st.data(),
)
def test_each_text_gets_what_it_would_get_alone_and_no_padding(
    texts: list[list[int]], layers: tuple[int, ...], wants: st.DataObject
) -> None:
    jobs = [job(ids, layers=layers, wants_tokens=wants.draw(st.booleans())) for ids in texts]
    waits = [float(index) for index in range(len(jobs))]
    results = separate(jobs, compute(together(jobs)), queue_seconds=waits, inference_seconds=0.5)
    for index, (one, result) in enumerate(zip(jobs, results, strict=True)):
        (alone,) = separate([one], compute(together([one])), queue_seconds=[0.0], inference_seconds=0.5)
        assert result.output[0] == alone.output[0]
        assert (result.queue_seconds, result.inference_seconds) == (float(index), 0.5)
        assert tuple(result.attentions) == layers
        for layer in layers:
            weights = result.attentions[layer]
            assert weights.shape == (HEADS[layer], len(texts[index]), len(texts[index]))
            np.testing.assert_array_equal(weights, alone.attentions[layer])
            assert weights.flags.c_contiguous
        if not one.wants_tokens:
            assert result.last_hidden_state is None
            continue
        assert result.last_hidden_state is not None
        assert alone.last_hidden_state is not None
        np.testing.assert_array_equal(result.last_hidden_state, alone.last_hidden_state)
        assert result.last_hidden_state.flags.c_contiguous
