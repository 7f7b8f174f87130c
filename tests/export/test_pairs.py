"""Pairs of texts as the artifact's tokenizer makes them, against the tokenizers of `transformers`."""

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from export.errors import UnsupportedModel
from export.tokenizer import prepare_pairs, read_tokenizer
from tests.export.conftest import write_json
from tests.tokenizers import TOKENIZERS, wordpiece

PAIRS = [("the cats sat", "on the mats"), ("lower", ""), ("", "newest"), ("日 word", "naïve café!")]
CLASSES = [  # kind of tokenizer, class or none, model type, whether the network has types
    ("wordpiece", "BertTokenizer", "bert", True),
    ("wordpiece", "ElectraTokenizer", "electra", True),
    ("wordpiece", "PreTrainedTokenizerFast", "bert", True),
    ("wordpiece", "DistilBertTokenizer", "distilbert", False),
    ("bpe", "RobertaTokenizer", "roberta", False),
    ("bpe", "RobertaTokenizer", "roberta", True),
    ("unigram", "XLMRobertaTokenizer", "xlm-roberta", False),
    ("unigram", "CamembertTokenizer", "camembert", False),
    ("wordpiece", "PreTrainedTokenizerFast", "modernbert", False),
    ("wordpiece", None, "nomic_bert", True),
    ("deberta", None, "deberta-v2", True),
    ("deberta", "DebertaV2TokenizerFast", "deberta-v2", True),
]


def write(folder: Path, tokenizer: Tokenizer, model_type: str, settings: dict[str, Any]) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {"model_type": model_type})
    return write_json(folder / "tokenizer_config.json", settings)


@pytest.mark.parametrize(("kind", "name", "model_type", "has_types"), CLASSES)
def test_pairs_are_transformers_own(
    tmp_path: Path, kind: str, name: str | None, model_type: str, *, has_types: bool
) -> None:
    settings: dict[str, Any] = {"tokenizer_class": name} if name else {}
    folder = write(tmp_path, TOKENIZERS[kind](), model_type, {**settings, "model_max_length": 40})
    ours, takes_pairs = prepare_pairs(read_tokenizer(folder), folder, has_types=has_types)
    theirs = AutoTokenizer.from_pretrained(str(folder))
    assert takes_pairs
    for first, second in PAIRS:
        expected, found = theirs([first], [second]), ours.encode(first, second)
        assert found.ids == expected["input_ids"][0]
        if has_types:
            assert found.type_ids == expected.get("token_type_ids", [[0] * len(found.ids)])[0]


def test_types_may_be_asked_for_beside_the_class(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
    folder = write(tmp_path, wordpiece(), "bert", settings)
    ours, _ = prepare_pairs(read_tokenizer(folder), folder, has_types=True)
    expected = AutoTokenizer.from_pretrained(str(folder))("the cat", "on")["token_type_ids"]
    assert ours.encode("the cat", "on").type_ids == expected
    assert 1 in expected


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            "[CLS] $A [SEP] [SEP] $B [SEP]",
            "puts [CLS] [SEP] [SEP] [SEP] around a pair, its class in `transformers` [CLS] [SEP] [SEP]",
        ),
        ("[CLS] $A [SEP] $B [SEP]", "token types [0, 0, 0], its class in `transformers` [0, 0, 1]"),
    ],
)
def test_a_template_and_types_of_another_family_are_refused(tmp_path: Path, pair: str, message: str) -> None:
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = write(tmp_path, tokenizer, "bert", {"tokenizer_class": "BertTokenizer"})
    with pytest.raises(UnsupportedModel, match=re.escape(message)):
        prepare_pairs(read_tokenizer(folder), folder, has_types=True)


def test_a_tokenizer_without_separators_joins_the_texts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    tokenizer.post_processor = None
    folder = write(tmp_path, tokenizer, "modernbert", {"tokenizer_class": "PreTrainedTokenizerFast"})
    ours, takes_pairs = prepare_pairs(tokenizer, folder, has_types=False)
    assert takes_pairs
    assert ours.encode("the cat", "on").ids == AutoTokenizer.from_pretrained(str(folder))("the cat", "on")["input_ids"]
