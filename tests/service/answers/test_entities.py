"""The pipeline of `transformers` finds the same entities in the same scores, for tokenizers of every kind."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from transformers import BertConfig, BertForTokenClassification
from transformers import PreTrainedTokenizerFast as TheirTokenizer
from transformers import TokenClassificationPipeline as TheirPipeline

from service.answers.entities import LabelledText
from service.requests.schemas import Aggregation, EntityRequest
from service.tokenization.rows import stitch
from service.tokenization.tokenizer import Tokenizer
from tests.tokenizers import TOKENIZERS

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")
DECODERS: dict[str, Any] = {"wordpiece": decoders.WordPiece(), "unigram": decoders.Metaspace(), "bpe": None}
UNKNOWN = {"wordpiece": "[UNK]", "unigram": "<unk>", "gemma": "<unk>"}
TEXTS = ["the cats sat on the mats, newest lowest!", "naïve 日本 语 café", "a  b\tc - d", "", "word\n\nother widest."]


def make(name: str) -> FastTokenizer:
    tokenizer = FastTokenizer.from_str(TOKENIZERS[name]().to_str())  # theirs are shared by all tests
    if DECODERS.get(name) is not None:
        tokenizer.decoder = DECODERS[name]
    return tokenizer


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bpe", "qwen", "gemma"])
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, Any]:
    name = request.param
    sizes = {"vocab_size": 4, "hidden_size": 4, "num_hidden_layers": 0, "num_attention_heads": 1}
    model = BertForTokenClassification(BertConfig(**sizes, id2label=dict(enumerate(LABELS))))
    theirs: Any = TheirTokenizer
    pipeline: Any = TheirPipeline
    tokenizer = theirs(tokenizer_object=make(name), unk_token=UNKNOWN.get(name))
    return Tokenizer(make(name), 500, threads=1), pipeline(model=model, tokenizer=tokenizer)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_groups_are_those_of_the_pipeline(
    both: tuple[Tokenizer, Any], aggregation: Aggregation, generator: np.random.Generator
) -> None:
    ours, pipeline = both
    for text in TEXTS * 3:
        item = ours.encode_now([text])[0]
        if not len(item.input_ids):
            continue
        logits = generator.normal(0, 2, (len(item.input_ids), len(LABELS))).astype(np.float32)
        (given,) = pipeline.preprocess(text, is_split_into_words=False)
        assert given["input_ids"][0].tolist() == item.input_ids.tolist()
        expected = pipeline.postprocess(
            [{**given, "logits": torch.from_numpy(logits)[None]}],
            **pipeline._sanitize_parameters(aggregation_strategy=aggregation, ignore_labels=["O", "LOC"])[2],
        )
        scores = torch.from_numpy(logits).softmax(dim=1).numpy()
        labelled = LabelledText(item, item.input_ids, scores, LABELS, ours)
        found = labelled.entities(EntityRequest(aggregation=aggregation, ignore_labels=["O", "LOC"]))
        assert [{**entity, "score": 0} for entity in found] == [{**entity, "score": 0} for entity in expected]
        np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in expected], atol=1e-6)


@pytest.mark.parametrize("overlap", [0, 1, 3, 4, 90])
@pytest.mark.parametrize("words", [0, 1, 6, 7, 8, 30])
def test_windows_joined_are_the_whole_text(words: int, overlap: int) -> None:
    tokenizer, text = Tokenizer(make("wordpiece"), 9, threads=1), "the cat " * (words // 2) + "a " * (words % 2)
    (item,) = asyncio.run(tokenizer.encode_windows([text], overlap, ids_only=False))
    whole = Tokenizer(make("wordpiece"), 500, threads=1).encode_now([text])[0]
    assert stitch(item, [window.input_ids for window in item.windows]).tolist() == whole.input_ids.tolist()
    assert list(item.offsets or ()) == list(whole.offsets or ())
    assert max(len(window.input_ids) for window in item.windows) <= 9
    assert len(item.input_ids) <= 2 * len(whole.input_ids) + 2 * len(item.windows)  # however many are shared


def test_a_token_comes_from_the_window_that_holds_more_around_it() -> None:
    tokenizer = Tokenizer(make("wordpiece"), 9, threads=1)
    (item,) = asyncio.run(tokenizer.encode_windows(["the " * 12], 3, ids_only=False))
    assert item.window_starts == (0, 4, 8)
    of = stitch(item, [np.full(len(window.input_ids), place) for place, window in enumerate(item.windows)])
    assert of.tolist() == [0] * 6 + [1] * 4 + [2] * 4  # windows hold tokens 0 to 6, 4 to 10 and 8 to 11 of the text's
