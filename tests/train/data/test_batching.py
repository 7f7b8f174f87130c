import pytest
import torch
from tokenizers import Tokenizer

from tests.train.conftest import draw_texts
from train.data.batching import epoch_batches, tokenize_pairs, tokenize_texts
from train.data.substitution import ordinary_tokens, substitute

LENGTHS = [3 + 7 * place % 50 for place in range(1000)]


@pytest.mark.parametrize("batch_size", [1, 7, 64, 2000])
def test_an_epoch_has_every_example_once_in_whole_batches(batch_size: int) -> None:
    found = epoch_batches(LENGTHS, batch_size, seed=0, epoch=0)
    size = min(batch_size, 1000)
    places = [place for batch in found for place in batch]
    assert {len(batch) for batch in found} == {size}
    assert len(places) == len(set(places)) == 1000 - 1000 % size


def test_batches_hold_texts_of_similar_length_in_another_order_every_epoch() -> None:
    epochs = [epoch_batches(LENGTHS, 16, seed=0, epoch=epoch) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] == epoch_batches(LENGTHS, 16, seed=0, epoch=0) != epoch_batches(LENGTHS, 16, seed=1, epoch=0)
    longest = [max(LENGTHS[place] for place in batch) for batch in epochs[0]]
    padded = 16 * sum(longest) / sum(LENGTHS[place] for batch in epochs[0] for place in batch)
    assert padded < 1.1
    assert longest != sorted(longest)


def test_batches_are_what_the_tokenizer_gives(tokenizer: Tokenizer) -> None:
    texts = draw_texts(6)
    batch = tokenize_texts(texts, tokenizer, 7).batch([4, 1])
    expected = [tokenizer.encode(texts[place]).ids for place in (4, 1)]
    for row, length, ids in zip(batch.input_ids, batch.lengths, expected, strict=True):
        cut = ids if len(ids) <= 7 else [*ids[:6], ids[-1]]
        assert row[:length].tolist() == cut
        assert not row[length:].any()
    pairs = tokenize_pairs([("the cat", "sat"), ("a mat", "on the mat")], tokenizer, 40).batch([1])
    assert pairs.token_type_ids is not None
    assert pairs.token_type_ids.tolist() == [tokenizer.encode("a mat", "on the mat").type_ids]


def test_substitution_leaves_special_tokens_and_every_other_text(tokenizer: Tokenizer) -> None:
    tokens = ordinary_tokens(tokenizer)
    assert set(tokens.tolist()) == set(range(4, 16))
    batch = tokenize_texts(draw_texts(400), tokenizer, 12).batch(range(400))
    generator = torch.Generator().manual_seed(0)
    changed = substitute(batch, tokens, 0.5, generator)
    differs = changed.input_ids != batch.input_ids
    assert torch.isin(changed.input_ids[differs], tokens).all()
    assert torch.isin(batch.input_ids[differs], tokens).all()
    untouched = (~differs.any(dim=1)).float().mean()
    assert 0.45 < untouched < 0.65
    assert torch.equal(changed.lengths, batch.lengths)
