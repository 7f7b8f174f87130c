import pytest

from benchmarks.lib.texts import LONGEST_WORDS, SHORTEST_WORDS, fingerprint, load_texts

pytestmark = pytest.mark.slow  # reads the standard library's source, ten seconds


def test_a_sample_is_the_same_every_time_and_seeds_differ() -> None:
    assert load_texts("short", 50) == load_texts("short", 50)
    assert load_texts("short", 50, seed=1) != load_texts("short", 50, seed=2)
    assert fingerprint(load_texts("mixed", 50)) == fingerprint(load_texts("mixed", 50))
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])


def test_short_texts_are_different_prose_paragraphs_on_one_line() -> None:
    texts = load_texts("short", 2000)
    assert len(set(texts)) == len(texts)
    words = [len(text.split()) for text in texts]
    assert SHORTEST_WORDS <= min(words) <= max(words) <= LONGEST_WORDS
    assert 15 < sum(words) / len(words) < 35
    assert not any("\n" in text or ">>>" in text for text in texts)


def test_mixed_texts_have_a_long_tail() -> None:
    words = sorted(len(text.split()) for text in load_texts("mixed", 2000))
    assert words[1000] < 40
    assert words[1980] > 150
    assert words[-1] <= LONGEST_WORDS


def test_more_texts_than_there_are_start_over() -> None:
    texts = load_texts("short", 30_000)
    assert len(texts) == 30_000
    assert texts[0] in texts[1:]
