from train.data.running_text import as_running_text

TEXTS = [f"word{index}" for index in range(400)]


def test_every_text_comes_once_at_the_front_and_a_share_is_ended() -> None:
    made = as_running_text(TEXTS, 0.5, seed=1)
    assert [row.split(".")[0].split(",")[0] for row in made] == TEXTS
    ended = [row for row in made if row.endswith(".")]
    assert 160 < len(ended) < 240
    assert 0.35 < sum("word" in row[4:] for row in ended) / len(ended) < 0.65  # one or two more texts
    assert all(row in TEXTS for row in made if not row.endswith("."))


def test_the_seed_decides() -> None:
    assert as_running_text(TEXTS, 0.5, seed=1) == as_running_text(TEXTS, 0.5, seed=1)
    assert as_running_text(TEXTS, 0.5, seed=1) != as_running_text(TEXTS, 0.5, seed=2)
    assert as_running_text(TEXTS, 0.0, seed=1) == TEXTS


def test_a_full_stop_is_not_doubled() -> None:
    assert all(".." not in row for row in as_running_text(["one ended.", "another."] * 50, 0.9, seed=0))
