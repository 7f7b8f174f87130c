from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import BertTokenizer, DistilBertTokenizer, RobertaTokenizer

from export.errors import SourceError
from export.tokenizer import read_tokenizer
from tests.export.conftest import write_json
from tests.texts import PLAIN
from tests.tokenizers import bpe, wordpiece

TEXTS = [*PLAIN, "[MASK] [SEP]", "a <mask> b</s>", "<s>x", "Ünïcödé ÀÉ", "don't  stop\u3000now", "x\u00a0y [mask]"]


def write_vocabulary(folder: Path, made: Tokenizer, **settings: Any) -> Path:
    """vocab.txt, or vocab.json and merges.txt, as the library saves a model; without tokenizer.json."""
    made.model.save(str(folder))
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    return folder


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]], list[int]]]:
    return [(found.ids, found.offsets, found.special_tokens_mask) for found in map(tokenizer.encode, texts)]


def encode_theirs(tokenizer: Any, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]], list[int]]]:
    found = [tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True) for text in texts]
    return [(one["input_ids"], one["offset_mapping"], one["special_tokens_mask"]) for one in found]


MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True}
CASES: list[tuple[Callable[[], Tokenizer], Any, dict[str, Any]]] = [
    (wordpiece, BertTokenizer, {}),
    (wordpiece, BertTokenizer, {"do_lower_case": False, "strip_accents": True}),
    (wordpiece, DistilBertTokenizer, {"tokenize_chinese_chars": False}),
    (wordpiece, BertTokenizer, {"strip_accents": False, "unk_token": "[UNK]"}),
    (bpe, RobertaTokenizer, {}),
    (bpe, RobertaTokenizer, {"add_prefix_space": True}),
    (bpe, RobertaTokenizer, {"trim_offsets": False}),
    (bpe, RobertaTokenizer, {"mask_token": MASK}),
]


@pytest.mark.parametrize("ending", ["", "Fast"])
@pytest.mark.parametrize(("made", "kind", "settings"), CASES)
def test_older_files_become_the_tokenizer_of_transformers(
    tmp_path: Path, made: Callable[[], Tokenizer], kind: Any, settings: dict[str, Any], ending: str
) -> None:
    folder = write_vocabulary(tmp_path, made(), tokenizer_class=kind.__name__ + ending, **settings)
    assert encode(read_tokenizer(folder), TEXTS) == encode_theirs(kind.from_pretrained(folder), TEXTS)


def test_the_networks_type_counts_where_no_class_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "electra"})
    assert read_tokenizer(write_vocabulary(tmp_path, wordpiece())).encode("Cats").tokens[0] == "[CLS]"


@pytest.mark.parametrize(
    ("model_type", "files", "message"),
    [
        ("bert", (), "tokenizer.json is missing, .* what else is there .nothing."),
        ("xlm-roberta", ("sentencepiece.bpe.model",), "xlm-roberta tokenizer cannot .*sentencepiece.bpe.model"),
        ("mpnet", ("vocab.txt",), "a mpnet tokenizer cannot be made exactly of what else is there .vocab.txt."),
        ("roberta", ("vocab.json",), "a roberta tokenizer cannot be made exactly of what else is there .vocab.json."),
    ],
)
def test_refuses_what_it_cannot_convert_and_says_what_to_do(
    tmp_path: Path, model_type: str, files: tuple[str, ...], message: str
) -> None:
    write_json(tmp_path / "config.json", {"model_type": model_type})
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(SourceError, match=message) as caught:
        read_tokenizer(tmp_path)
    assert "save_pretrained(FOLDER)" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("added_tokens.json", {"<new>": 400}, "added tokens such as '<new>'"),
        ("special_tokens_map.json", {"cls_token": "<cls>"}, "does not hold cls_token '<cls>'"),
        ("tokenizer_config.json", {"do_basic_tokenize": False}, "do_basic_tokenize"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"400": {"content": "<new>"}}}, "such as '<new>'"),
    ],
)
def test_refuses_what_stands_beside_the_vocabulary(tmp_path: Path, name: str, data: Any, message: str) -> None:
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    write_json(write_vocabulary(tmp_path, wordpiece()) / name, data)
    with pytest.raises(SourceError, match=message):
        read_tokenizer(tmp_path)


def test_refuses_merges_that_are_none(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, bpe(), tokenizer_class="RobertaTokenizer")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nnot a merge at all\n")
    with pytest.raises(SourceError, match="vocab.json and merges.txt cannot be read"):
        read_tokenizer(tmp_path)


def test_a_vocabulary_in_another_encoding_is_said_in_a_line(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path, wordpiece(), tokenizer_class="BertTokenizer")
    (folder / "vocab.txt").write_bytes("\n".join(f"été{number}" for number in range(300)).encode("latin-1"))
    with pytest.raises(SourceError, match="settings are malformed: UnicodeDecodeError"):
        read_tokenizer(folder)
