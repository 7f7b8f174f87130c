"""tokenizer.json and the files beside it: what `transformers` makes of both counts, for texts and for pairs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from tokenizers.normalizers import BertNormalizer, Lowercase, Sequence
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import RobertaProcessing
from transformers import AutoTokenizer, BertTokenizer, DistilBertTokenizer, RobertaTokenizer

from export.errors import SourceError, UnsupportedModel
from export.tokenizer import prepare_pairs, read_tokenizer
from tests.export.conftest import write_json
from tests.texts import PLAIN
from tests.tokenizers import TOKENIZERS, bpe, unigram, wordpiece

Made = Callable[[], Tokenizer]
Settings = dict[str, Any] | None
Kind = str | dict[str, str]  # the model type, or all of config.json
TEXTS = [
    *("The CAT sat", " the cat", "Ünïcödé ÀÉ", "你好 世界", "a [SEP] b </s>", "don't  stop", "", "the end \n"),
    *("x [MASK]y", "x <mask>y"),
]
MORE_TEXTS = [*PLAIN, *TEXTS, "[MASK] [SEP]", "a <mask> b</s>", "<s>x", "don't  stop\u3000now", "x\u00a0y [mask]"]
AS_IT_STANDS = {"tokenizer_class": "PreTrainedTokenizerFast"}


def write(folder: Path, made: Tokenizer, kind: Kind, settings: Settings, older: Settings = None) -> Path:
    """tokenizer.json and the files of its folder; `older` is of special_tokens_map.json."""
    made.save(str(folder / "tokenizer.json"))
    for name, content in (("tokenizer_config.json", settings), ("special_tokens_map.json", older)):
        if content is not None:
            write_json(folder / name, content)
    return write_json(folder / "config.json", {"model_type": kind} if isinstance(kind, str) else kind)


def flags(content: str, **change: bool) -> dict[str, Any]:
    """tokenizer_config.json's entry of a token."""
    return {"content": content, "special": True, "normalized": False, **change}


def metaspace() -> Tokenizer:
    """As newer conversions of SentencePiece's files are: a space at the end is a piece."""
    made = Tokenizer.from_str(unigram().to_str())
    made.pre_tokenizer = Metaspace()
    return made


def cased() -> Tokenizer:
    made = Tokenizer.from_str(wordpiece().to_str())
    normalizer = made.normalizer
    normalizer.lowercase, normalizer.handle_chinese_chars = False, False
    made.normalizer = normalizer
    return made


@pytest.mark.parametrize(
    ("made", "kind", "settings"),
    [
        (cased, "bert", None),
        (cased, "electra", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
        (cased, "nomic_bert", {"do_lower_case": False}),
        (cased, "distilbert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
        (wordpiece, "distilbert", {"do_lower_case": False, "tokenize_chinese_chars": False}),
        (wordpiece, "bert", {"tokenizer_class": "BertTokenizerFast", "strip_accents": False}),
        (bpe, "roberta", {"add_prefix_space": True}),
        (bpe, "roberta", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}),
        (bpe, "modernbert", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
        (unigram, "xlm-roberta", {"add_prefix_space": False}),
        (unigram, "bert", {"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": False}),
        (metaspace, "xlm-roberta", None),
        (metaspace, "camembert", {"tokenizer_class": "CamembertTokenizerFast"}),
        (metaspace, "xlm-roberta", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        (wordpiece, "bert", {"added_tokens_decoder": {"4": flags("[MASK]", lstrip=True)}}),
        (bpe, "roberta", {"added_tokens_decoder": {"4": flags("<mask>", rstrip=True)}}),
        (bpe, "modernbert", {"added_tokens_decoder": {"4": flags("<mask>", lstrip=False)}}),
        # config.json names the class where tokenizer_config.json does not
        (wordpiece, {"model_type": "roberta", "tokenizer_class": "BertTokenizer"}, {"model_max_length": 512}),
        (unigram, {"model_type": "bert", "tokenizer_class": "XLMRobertaTokenizerFast"}, {"model_max_length": 512}),
        (cased, {"model_type": "bert", "tokenizer_class": "PreTrainedTokenizerFast"}, {"model_max_length": 512}),
        (cased, {"model_type": "new", "tokenizer_class": "BertTokenizer"}, {"model_max_length": 512}),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_tokenizer_config_overrules_as_in_transformers(
    tmp_path: Path, made: Made, kind: Kind, settings: Settings
) -> None:
    assert_equal_to_transformers(write(tmp_path, made(), kind, settings))


def assert_equal_to_transformers(folder: Path, texts: list[str] = TEXTS, kind: Any = AutoTokenizer) -> None:
    theirs, ours = kind.from_pretrained(folder), read_tokenizer(folder)
    for text in texts:
        expected = theirs(text, return_offsets_mapping=True, return_special_tokens_mask=True)
        found = ours.encode(text)
        assert (found.ids, found.offsets) == (expected["input_ids"], expected["offset_mapping"]), text
        assert found.special_tokens_mask == expected["special_tokens_mask"], text


def mpnet() -> Tokenizer:
    described = wordpiece().to_str()
    for bert, own in (("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>"), ("[MASK]", "<mask>")):
        described = described.replace(json.dumps(bert), json.dumps(own))
    made = Tokenizer.from_str(described)
    ids = made.get_vocab()
    made.post_processor = RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return made


@pytest.mark.parametrize(
    ("made", "model_type", "settings", "older"),
    [
        (wordpiece, "bert", None, None),
        (wordpiece, "bert", {**AS_IT_STANDS, "sep_token": "[SEP]"}, None),
        (wordpiece, "bert", {"mask_token": {**flags("[MASK]", lstrip=True), "__type": "AddedToken"}}, None),
        (wordpiece, "nomic_bert", AS_IT_STANDS, {"mask_token": flags("[MASK]", rstrip=True)}),
        (mpnet, "mpnet", None, None),
        (mpnet, "mpnet", {"mask_token": {**flags("<mask>"), "__type": "AddedToken"}}, None),
        (bpe, "roberta", None, None),
        (bpe, "modernbert", {"mask_token": "<mask>"}, None),
        (unigram, "xlm-roberta", None, None),
        (unigram, "camembert", None, None),
        (wordpiece, "bert", {"mask_token": "[none]"}, None),  # no piece either: none of the texts holds it
    ],
)
def test_special_tokens_named_beside_it_stay_whole(
    tmp_path: Path, made: Made, model_type: str, settings: Settings, older: Settings
) -> None:
    described = json.loads(made().to_str())
    named = [token["content"] for token in described["added_tokens"]]
    described["added_tokens"] = []  # they stay pieces
    folder = write(tmp_path, Tokenizer.from_str(json.dumps(described)), model_type, settings, older)
    assert_equal_to_transformers(folder, [*TEXTS, *(f"a  {token} b{token}c" for token in named)])


@pytest.mark.parametrize(("stored", "said"), [("left", None), ("right", "left"), (None, "left"), ("left", "right")])
def test_cutting_at_the_left_is_refused_and_tokenizer_config_counts_first(
    tmp_path: Path, stored: str | None, said: str | None
) -> None:
    made = Tokenizer.from_str(wordpiece().to_str())
    if stored:
        made.enable_truncation(9, direction=stored)
    folder = write(tmp_path, made, "bert", {"truncation_side": said} if said else {})
    assert AutoTokenizer.from_pretrained(folder).truncation_side == (said or stored)
    if said == "right":
        assert read_tokenizer(folder).truncation is None
        return
    with pytest.raises(UnsupportedModel, match="truncation_side 'left' is not supported"):
        read_tokenizer(folder)


@pytest.mark.parametrize("has_json", [True, False])
@pytest.mark.parametrize(
    ("made", "model_type", "settings"),
    [
        (wordpiece, "bert", {"do_lower_case": "yes"}),
        (wordpiece, "bert", {"strip_accents": 1}),
        (wordpiece, "bert", {"added_tokens_decoder": ["[PAD]"], "do_lower_case": None}),
        (wordpiece, "bert", {"pad_token": 1, "tokenize_chinese_chars": {}}),
        (bpe, "roberta", {"add_prefix_space": None}),
    ],
)
def test_malformed_settings_are_one_line(
    tmp_path: Path, made: Made, model_type: str, settings: Settings, has_json: bool
) -> None:
    folder = write(tmp_path, made(), model_type, settings)
    if not has_json:
        (folder / "tokenizer.json").unlink()
        made().model.save(str(folder))
    with pytest.raises(SourceError, match="the tokenizer.s settings are malformed: ") as caught:
        read_tokenizer(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field", "known", "new"),
    [
        *(
            (name, "added_tokens_decoder", {"4": flags("[MASK]")}, {"400": flags("<new>")})
            for name in ("BertTokenizer", "PreTrainedTokenizerFast")
        ),
        ("BertTokenizer", "additional_special_tokens", ["[MASK]"], ["<new>"]),
        ("BertTokenizer", "extra_special_tokens", ["[MASK]"], ["<new>"]),
    ],
)
def test_refuses_tokens_not_in_tokenizer_json(tmp_path: Path, name: str, field: str, known: Any, new: Any) -> None:
    folder = write(tmp_path, wordpiece(), "bert", {"tokenizer_class": name, field: known})
    assert read_tokenizer(folder).encode("[MASK] <new>").tokens == ["[CLS]", "[MASK]", "<", "new", ">", "[SEP]"]
    write(tmp_path, wordpiece(), "bert", {"tokenizer_class": name, field: new})
    assert AutoTokenizer.from_pretrained(folder).tokenize("<new>") == ["<new>"]
    with pytest.raises(SourceError, match="added tokens such as '<new>' cannot be converted exactly"):
        read_tokenizer(folder)


def test_refuses_to_split_special_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path, wordpiece(), "bert", {"tokenizer_class": "BertTokenizer", "split_special_tokens": True})
    assert AutoTokenizer.from_pretrained(folder).tokenize("[SEP]") != ["[SEP]"]
    with pytest.raises(UnsupportedModel, match="split_special_tokens is not supported"):
        read_tokenizer(folder)


def test_refuses_a_tokenizer_that_fails_on_what_it_does_not_know(tmp_path: Path) -> None:
    described = json.loads(wordpiece().to_str())
    described["model"]["unk_token"] = "[NONE]"  # noqa: S105 - a token of text
    folder = write(tmp_path, Tokenizer.from_str(json.dumps(described)), "bert", AS_IT_STANDS)
    with pytest.raises(Exception, match="Missing .* token"):
        AutoTokenizer.from_pretrained(folder)("\ua66e")
    with pytest.raises(SourceError, match=r"the tokenizer fails on a text such as .*Missing .* token"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    ("made", "model_type", "settings", "older", "ends"),
    [
        (wordpiece, "bert", {"cls_token": "[MASK]"}, None, ["[MASK]", "[SEP]"]),
        (wordpiece, "electra", {}, {"sep_token": {"content": "[PAD]"}}, ["[CLS]", "[PAD]"]),
        (bpe, "roberta", {"sep_token": "<pad>"}, None, ["<s>", "<pad>"]),
        (unigram, "xlm-roberta", {"eos_token": "<pad>"}, None, ["<s>", "<pad>"]),
    ],
)
def test_refuses_other_tokens_around_a_text_than_transformers_puts_there(
    tmp_path: Path, made: Made, model_type: str, settings: Settings, older: Settings, ends: list[str]
) -> None:
    folder = write(tmp_path, made(), model_type, settings, older)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.convert_ids_to_tokens(theirs("")["input_ids"]) == ends
    with pytest.raises(UnsupportedModel, match=f"its class in `transformers` {re.escape(' '.join(ends))}, as"):
        read_tokenizer(folder)


@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_lowering_twice_is_lowering_once(strip_accents: bool | None) -> None:
    once = BertNormalizer(lowercase=True, strip_accents=strip_accents)
    twice = Sequence([Lowercase(), once])
    for plane in range(0, 0x30000, 0x1000):
        text = " ".join(chr(point) for point in range(plane, plane + 0x1000) if not 0xD800 <= point < 0xE000)
        assert once.normalize_str(text) == twice.normalize_str(text)


def test_a_tokenizer_that_lowers_keeps_the_short_way_to_ids(tmp_path: Path) -> None:
    read = read_tokenizer(write(tmp_path, wordpiece(), "bert", None), do_lower_case=True)
    assert isinstance(read.normalizer, BertNormalizer)
    read = read_tokenizer(write(tmp_path, wordpiece(), "bert", {"do_lower_case": False}), do_lower_case=True)
    assert read.encode("CAT").tokens == read.encode("cat").tokens != ["[CLS]", "[UNK]", "[SEP]"]


PAIRS = [("the cats sat", "on the mats"), ("lower", ""), ("", "newest"), ("日 word", "naïve café!")]
TYPED = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
CLASSES = [  # kind of tokenizer, class or settings, model type, the network's token types
    ("wordpiece", "BertTokenizer", "bert", 2),
    ("wordpiece", "ElectraTokenizer", "electra", 2),
    ("wordpiece", "PreTrainedTokenizerFast", "bert", 2),
    ("wordpiece", "BertTokenizer", "gte", 1),
    ("wordpiece", "DistilBertTokenizer", "distilbert", 0),
    ("bpe", "RobertaTokenizer", "roberta", 0),
    ("bpe", "RobertaTokenizer", "roberta", 2),
    ("unigram", "XLMRobertaTokenizer", "xlm-roberta", 0),
    ("unigram", "CamembertTokenizer", "camembert", 0),
    ("wordpiece", "PreTrainedTokenizerFast", "modernbert", 0),
    ("wordpiece", TYPED, "bert", 2),
    ("wordpiece", {}, "nomic_bert", 2),
    ("deberta", {}, "deberta-v2", 2),
    ("deberta", "DebertaV2TokenizerFast", "deberta-v2", 2),
]


@pytest.mark.parametrize(("kind", "said", "model_type", "types"), CLASSES)
def test_pairs_are_transformers_own(tmp_path: Path, kind: str, said: Any, model_type: str, types: int) -> None:
    settings = {"tokenizer_class": said} if isinstance(said, str) else said
    folder = write(tmp_path, TOKENIZERS[kind](), model_type, {**settings, "model_max_length": 40})
    ours, takes_pairs = prepare_pairs(read_tokenizer(folder), folder, types=types)
    theirs = AutoTokenizer.from_pretrained(str(folder))
    assert takes_pairs
    for first, second in PAIRS:
        expected, found = theirs([first], [second]), ours.encode(first, second)
        assert found.ids == expected["input_ids"][0]
        if types > 1:
            assert found.type_ids == expected.get("token_type_ids", [[0] * len(found.ids)])[0]
        assert types != 1 or not any(found.type_ids)  # the original fails on another type, or makes it 0


@pytest.mark.parametrize(
    ("model_type", "first", "second", "message"),
    [
        ("bert", "[CLS] $A [SEP]", " [SEP] $B [SEP]", "puts [CLS] [SEP] [SEP] [SEP] around a pair, {} [CLS] [SEP] [S"),
        ("bert", "[CLS] $A [SEP]", " $B [SEP]", "token types [0, 0, 0], {} [0, 0, 1]"),
        ("modernbert", "$A", " [SEP] $B", "puts [SEP] around a pair, {} nothing:"),
    ],
)
def test_a_template_and_types_of_another_family_are_refused(
    tmp_path: Path, model_type: str, first: str, second: str, message: str
) -> None:
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single=first, pair=first + second, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = write(tmp_path, tokenizer, model_type, {"tokenizer_class": "BertTokenizer"})
    with pytest.raises(UnsupportedModel, match=re.escape(message.format("its class in `transformers`"))):
        prepare_pairs(read_tokenizer(folder), folder, types=2)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "BertTokenizer"])
def test_a_tokenizer_without_separators_joins_the_texts(tmp_path: Path, name: str) -> None:
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    tokenizer.post_processor = None
    folder = write(tmp_path, tokenizer, "modernbert", {"tokenizer_class": name})
    ours, takes_pairs = prepare_pairs(tokenizer, folder, types=0)
    assert takes_pairs
    assert ours.encode("the cat", "on").ids == AutoTokenizer.from_pretrained(str(folder))("the cat", "on")["input_ids"]


def write_vocabulary(folder: Path, made: Tokenizer, **settings: Any) -> Path:
    """vocab.txt, or vocab.json and merges.txt, as the library saves a model; without tokenizer.json."""
    made.model.save(str(folder))
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    return folder


MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True}
CASES: list[tuple[Made, Any, dict[str, Any]]] = [
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
    tmp_path: Path, made: Made, kind: Any, settings: dict[str, Any], ending: str
) -> None:
    folder = write_vocabulary(tmp_path, made(), tokenizer_class=kind.__name__ + ending, **settings)
    assert_equal_to_transformers(folder, MORE_TEXTS, kind)


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


def test_older_files_that_cannot_be_read_are_said_in_a_line(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path, bpe(), tokenizer_class="RobertaTokenizer")
    (folder / "merges.txt").write_text("#version: 0.2\nnot a merge at all\n")
    with pytest.raises(SourceError, match="vocab.json and merges.txt cannot be read"):
        read_tokenizer(folder)
    write_vocabulary(folder, wordpiece(), tokenizer_class="BertTokenizer")
    (folder / "vocab.txt").write_bytes("\n".join(f"été{number}" for number in range(300)).encode("latin-1"))
    with pytest.raises(SourceError, match="settings are malformed: UnicodeDecodeError"):
        read_tokenizer(folder)
