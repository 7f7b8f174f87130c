import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from torch.nn.functional import normalize

from export.checkpoint import Checkpoint
from model.config_parts import ClassificationSettings
from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import draw, draw_texts, read_back, write_rows
from train import loop
from train.classify import UNLABELLED, Classify, LabelTokens, read_labels
from train.commands import ClassifySettings, ContrastSettings, Level
from train.contrast import Contrast, backward_in_chunks, info_nce, known_positives
from train.data import read_rows
from train.embedding import recall
from train.errors import DataError, RunError
from train.folder import RECORD, write_network
from train.loop import Recipe
from train.settings import RunSettings


def run_of(folder: Path, epochs: float = 1, batch_size: int = 16) -> RunSettings:
    return RunSettings(output=folder / "run", epochs=epochs, batch_size=batch_size, learning_rate=4e-3, evaluations=2)


def train(recipe: Recipe, run: RunSettings) -> tuple[float, Checkpoint]:
    """The best score, and the network that has it."""
    best = loop.train(recipe, run).best
    assert best is not None
    return best, read_back(run.output)


def output(network: Checkpoint, *texts: str) -> Tensor:
    """The task's output of a text or a pair, by the network's own tokenizer."""
    row = network.tokenizer.encode(*texts)  # type: ignore[arg-type]  # its flags are named
    types = torch.tensor([row.type_ids])
    ids, lengths = torch.tensor([row.ids]), torch.tensor([len(row.ids)])
    found: Tensor = network.encoder(ids, lengths, token_type_ids=types).task_output
    return found[0]


def test_labels_are_learned_and_exported(tiny_folder: Path, tmp_path: Path) -> None:
    labelled, run = tmp_path / "labelled.csv", run_of(tmp_path, epochs=5)
    labelled.write_text("".join(f"{text},{'yes' if 'cat' in text else 'no'}\n" for text in draw_texts(160)))
    best, network = train(Classify(ClassifySettings(model=str(tiny_folder), rows=labelled), run), run)
    assert best > 80
    settings = network.encoder.config.task_settings
    assert isinstance(settings, ClassificationSettings)
    assert settings.labels == ("no", "yes")
    assert [int(output(network, text).argmax()) for text in ("the cat sat", "the dog ran")] == [1, 0]


def test_scores_of_pairs_are_learned(tiny_folder: Path, tmp_path: Path) -> None:
    rated, judged = tmp_path / "rated.csv", tmp_path / "judged.csv"
    for path, seed in ((rated, 0), (judged, 2)):
        pairs = zip(draw_texts(240, seed), draw_texts(240, seed + 1), strict=True)
        rows = [(a, b, b.split().count("cat") - a.split().count("cat")) for a, b in pairs]  # which is which counts
        path.write_text("".join(f"{a},{b},{score * (1 + 8 * seed)}\n" for a, b, score in rows))
    # held-out scores have a wider range than the learned ones
    settings = ClassifySettings(model=str(tiny_folder), rows=rated, held_out=judged, pairs=True, scores=True)
    run = run_of(tmp_path, epochs=4)
    best, network = train(Classify(settings, run), run)
    assert best > 40
    assert network.pairs
    logits = [float(output(network, left, right)) for left, right, _ in rows]
    assert 100 * spearmanr(logits, [score for *_, score in rows])[0] == pytest.approx(best, abs=0.1)


def test_labels_of_words_are_learned_and_exported(tiny_folder: Path, tmp_path: Path) -> None:
    rows, run = tmp_path / "rows.tsv", run_of(tmp_path, epochs=6, batch_size=8)
    lines = [(text, " ".join("CAT" if word == "cat" else "O" for word in text.split())) for text in draw_texts(120)]
    rows.write_text("".join(f"{text}\t{labels}\n" for text, labels in lines))
    best, network = train(LabelTokens(ClassifySettings(model=str(tiny_folder), rows=rows, level="tokens"), run), run)
    assert best > 95
    assert network.encoder.config.task == "token_classification"
    place = network.tokenizer.encode("the cat sat").tokens.index("cat")
    assert int(output(network, "the cat sat")[place].argmax()) == 0
    (tokens, targets) = read_labels(read_rows(rows, ("text", "labels"))[0][:1], ["CAT", "O"], network.tokenizer, 40)
    assert len(tokens.ids[0]) == len(targets[0])
    assert int((targets[0] != UNLABELLED).sum()) == len(lines[0][0].split())


def test_a_word_without_a_token_teaches_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    rows, run = tmp_path / "rows.csv", run_of(tmp_path, batch_size=1)
    rows.write_text("".join(f"the cat {'sat ' * number},A B{' A' * number}\n" for number in range(4)))
    with rows.open("a", encoding="utf-8") as file:
        file.write("".join(f"{chr(0x200B) * number},A\n" for number in range(1, 9)))
    recipe = LabelTokens(ClassifySettings(model=str(tiny_folder), rows=rows, level="tokens"), run)
    loop.train(recipe, run)
    assert all(tensor.isfinite().all() for tensor in recipe.encoder.state_dict().values())


def test_a_label_whose_only_row_is_held_out_is_one_of_the_labels(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"word{number},label{number}\n" for number in range(40)))
    for level in get_args(Level):
        recipe = ClassifySettings(model=str(tiny_folder), rows=path, level=level).recipe(run_of(tmp_path))
        assert len(recipe.described["targets"]["labels"]) == 40


WORDS = "".join(f"other {n},O N\n" for n in range(8))
FAULTS = {
    "a score that is a word": ("scores", "a,b,3\n" * 8 + "a,b,many\n", "line 9: the score is 'many', expected a"),
    "a score that is no number": ("scores", "a,b,3\n" * 8 + "a,b,nan\n", "line 9: the score is 'nan', expected a"),
    "scores all alike": ("scores", "a,b,3\n" * 9, "every score is 3; nothing can be learned"),
    "held-out scores all alike": ("scores", "a,b,3\na,b,4\n" * 4, "every held-out score is 3: give other rows"),
    "one label": ("labels", "a,b,same\n" * 9, "1 different labels; expected 2 to 1000"),
    "scores as labels": ("labels", "".join(f"a{n},b,{n}\n" for n in range(1001)), "to 1000. Are these scores?"),
    "a label that is not learned": ("labels", "a,b,4\na,b,5\n" * 4, "line 1: label '3' is none of those learned from"),
    "fewer labels than words": ("words", WORDS + "a b,O\n", "line 9: 2 words and 1 labels"),
    "a word's label that is not learned": ("words", WORDS + "a b,O X\n", "line 9: label 'X' is none of those"),
    "no labels": ("words", WORDS + "a, \n", "line 9: labels is empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_targets_that_teach_nothing_are_named(fault: str, tiny_folder: Path, tmp_path: Path) -> None:
    kind, content, message = FAULTS[fault]
    rows, judged = tmp_path / "rows.csv", tmp_path / "judged.csv"
    is_words = kind == "words"
    rows.write_text(WORDS.replace("other", "word") if is_words else content)
    judged.write_text(content if is_words else "c,d,3\n" * 8)  # scores, too, are all alike
    given: Any = {"level": "tokens"} if is_words else {"pairs": True, "scores": kind == "scores"}
    with pytest.raises(DataError, match=message):
        ClassifySettings(model=str(tiny_folder), rows=rows, held_out=judged, **given).recipe(run_of(tmp_path))


@pytest.mark.parametrize("dimensions", [(), (8,), (8, 3)])
def test_info_nce_is_sentence_transformers(dimensions: tuple[int, ...]) -> None:
    anchors, candidates = draw(4, 8), draw(8, 8, seed=1)
    expected = MultipleNegativesRankingLoss(None, scale=20)
    losses = [
        expected.compute_loss_from_embeddings(
            [x[:, :size] for x in (anchors, candidates[:4], candidates[4:])], torch.empty(0)
        ).item()
        for size in dimensions or (8,)
    ]
    known = known_positives(list("abcd"), [str(index) for index in range(8)], {})
    found = info_nce(anchors, candidates, known, scale=20, dimensions=dimensions)
    assert float(found) == pytest.approx(float(np.mean(losses)))


def test_a_further_positive_of_an_anchor_is_no_negative() -> None:
    anchors, candidates = draw(4, 8), draw(7, 8, seed=1)
    texts = ["a", "b", "a", "d", "b", "f", "g"]
    positives = {"one": {"a", "f"}, "two": {"b", "d"}, "three": {"a"}}
    known = known_positives(["one", "two", "three", "two"], texts, positives)
    left, right = (normalize(x, dim=1).numpy() for x in (anchors, candidates))
    losses = []
    for row, wrong in enumerate(([1, 3, 4, 6], [0, 2, 5, 6], [1, 3, 4, 5, 6], [0, 2, 5, 6])):
        scores = np.exp(20 * (left[row] @ right.T))
        losses.append(-np.log(scores[row] / (scores[row] + scores[wrong].sum())))
    assert float(info_nce(anchors, candidates, known, scale=20)) == pytest.approx(float(np.mean(losses)))


def test_recall_is_the_share_of_own_documents_among_the_nearest() -> None:
    documents = normalize(draw(60, 8), dim=1)
    queries = normalize(documents.repeat(2, 1)[:90] + 0.8 * draw(90, 8, seed=1), dim=1)
    own = {place: {place % 60, (place + 7 * (place % 3 == 0)) % 60} for place in range(90)}  # some have two
    pairs = [(query, document) for query, places in own.items() for document in places]
    for depth in (1, 10):
        nearest = (queries @ documents.T).topk(depth).indices.tolist()
        shares = [len(own[query] & set(found)) / len(own[query]) for query, found in enumerate(nearest)]
        assert 0 < np.mean(shares) < 1
        assert recall(queries, documents, pairs, depth=depth) == pytest.approx(100 * np.mean(shares))


def test_equal_documents_are_one_and_vectors_that_are_equal_or_no_numbers_are_no_find() -> None:
    three = normalize(draw(3, 8), dim=1)
    assert recall(three, three, [(0, 0), (1, 1), (2, 2)], depth=1) == 100
    same = torch.ones(50, 8) / 8**0.5
    for vectors in (same, torch.full_like(same, torch.nan)):
        assert recall(vectors, vectors, [(place, place) for place in range(50)], depth=10) == 0


def test_chunks_give_the_gradient_of_the_whole_batch() -> None:
    ids = torch.randint(4, 16, (12, 9), generator=torch.Generator().manual_seed(0))
    gradients, losses = [], []
    for size in (12, 1, 5):
        encoder = draw_weights(Encoder(TINY)).double().requires_grad_(True)

        def embed(part: Sequence[int], encoder: Encoder = encoder) -> torch.Tensor:
            return encoder(ids[list(part)], torch.full((len(part),), 9)).pooled  # type: ignore[no-any-return]

        def loss_of(found: torch.Tensor) -> torch.Tensor:
            return info_nce(found[:6], found[6:], torch.zeros(6, 6, dtype=torch.bool), scale=20)

        losses.append(backward_in_chunks(embed, 12, size, loss_of))
        gradients.append({name: p.grad for name, p in encoder.named_parameters() if p.grad is not None})
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-12)
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], atol=1e-10, rtol=1e-8)


def test_what_is_left_out_is_the_same_in_both_passes_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where a GPU's driver is too old: it is counted, and cannot be used.
    monkeypatch.setattr("torch.cuda.random.device_count", lambda: 1)
    layer, drop = torch.nn.Linear(6, 4, dtype=torch.float64), torch.nn.Dropout(0.5)
    x = draw(10, 6)
    seen: list[torch.Tensor] = []

    def embed(part: Sequence[int]) -> torch.Tensor:
        seen.append(drop(layer(x[list(part)])))
        return seen[-1]

    backward_in_chunks(embed, 10, 5, lambda found: found.square().sum())
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0] == 0, seen[1] == 0)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    texts = draw_texts(120)
    turned = [" ".join(reversed(text.split())) for text in texts]
    return write_rows(tmp_path / "pairs.csv", texts, turned, draw_texts(120, 1))


def test_a_run_brings_together_what_belongs_together(tiny_folder: Path, pairs: Path, tmp_path: Path) -> None:
    settings = ContrastSettings(model=str(tiny_folder), rows=pairs, chunk=24, dimensions=(32, 8))
    run = RunSettings(output=tmp_path / "run", epochs=3, batch_size=16, learning_rate=3e-3, evaluations=2)
    progress = loop.train(Contrast(settings, run), run)
    assert progress.losses[-1][1] < progress.losses[0][1]
    record = json.loads((run.output / RECORD).read_text())
    assert record["contrast"]["dimensions"] == [32, 8]
    assert read_back(run.output).encoder.config == TINY
    with pytest.raises(RunError, match="vectors have 32 dimensions: none to cut at 64"):
        Contrast(replace(settings, dimensions=(64,)), run)


def test_what_teaches_or_tells_nothing_is_refused_or_not_judged_by(
    tiny_folder: Path, pairs: Path, rated_file: Path, tmp_path: Path
) -> None:
    settings, run = ContrastSettings(model=str(tiny_folder), rows=pairs), RunSettings(output=tmp_path / "run")
    assert Contrast(settings, run).score == "recall_at_1"  # all of six positives are among the ten nearest
    assert Contrast(replace(settings, held_out=rated_file), run).score == "recall_at_10"
    alone = replace(run, batch_size=1)
    assert Contrast(settings, alone).rows  # each row has a negative
    pairs.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in pairs.read_text().splitlines()))
    with pytest.raises(RunError, match="--batch-size 1 has no negatives: take 2 or more, or give rows with negatives"):
        Contrast(settings, alone)


def test_texts_stand_behind_the_models_prompts(tiny_checkpoint: Checkpoint, pairs: Path, tmp_path: Path) -> None:
    prompts = {"query": "the cat ", "passage": "a dog "}
    defaults = replace(tiny_checkpoint.defaults, prompts=prompts, unit_length=False, similarity="dot")
    write_network(tmp_path / "tiny", tiny_checkpoint.encoder, replace(tiny_checkpoint, defaults=defaults))
    settings = ContrastSettings(model=str(tmp_path / "tiny"), rows=pairs)
    recipe = Contrast(settings, RunSettings(output=tmp_path / "run"))
    assert all(row[0].startswith("the cat ") and row[1].startswith("a dog ") for row in recipe.rows)
    assert all(text.startswith("a dog ") for row in recipe.rows for text in row[2:])
    first = recipe.like.tokenizer.encode("the cat").ids[:3]
    assert all(row[:3] == first for row in recipe.queries.ids)
    assert recipe.described["contrast"]["prompts"] == {"query": "the cat ", "document": "a dog "}
    assert recipe.like.defaults == replace(defaults, unit_length=True, similarity="cosine")  # what it learns
