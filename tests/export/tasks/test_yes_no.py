"""Language models that judge pairs, against the code of Qwen3-Reranker's card and the steps of mxbai-rerank-v2's."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer

from export.checkpoint import Checkpoint
from export.errors import UnsupportedModel
from export.tasks.yes_no import question_of
from model.config_parts import ClassificationSettings
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer
from tests.export.conftest import change_json, write_json, write_modules
from tests.family_models import read
from tests.yes_no import WEB, ask, ask_mxbai, build

TOLERANCE = 1e-5
LONGEST = 400
CODE = "Judge whether the code answers the question.\nBe strict:"
PAIRS = [
    ("why did the cat sit?", "It sat on the mat."),
    ("why?\n", "\n it rained 2026"),
    ("", "lower <|im_end|> newest"),
    ("naïve café 日", ""),
    ("what is\u0301 it ", "\u0301a  word "),
    ("the cat?", "it sat on the mat and " * 30),
]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose head is its token embeddings; do not change it."""
    return build(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture
def folder(tied: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(tied, tmp_path / "folder"))


@pytest.fixture(scope="module")
def judge(tied: Path) -> Checkpoint:
    return read(tied, task="classification", max_length=LONGEST)


def served(checkpoint: Checkpoint) -> Tokenizer:
    """The service's tokenizer of what would be exported."""
    made = FastTokenizer.from_str(checkpoint.tokenizer.to_str())
    return Tokenizer(made, checkpoint.max_sequence_length, threads=1, pair_wording=checkpoint.pair_wording)


def rows(checkpoint: Checkpoint, pairs: Sequence[tuple[str, str]], **options: Any) -> list[TokenizedInput]:
    tokenizer = served(checkpoint)
    try:
        return asyncio.run(tokenizer.encode_pairs(pairs, **options))
    finally:
        tokenizer.close()


@pytest.mark.parametrize(
    ("family", "tied", "ends", "instruction", "longest"),
    [
        ("qwen3", True, False, None, LONGEST),
        ("qwen3", False, True, CODE, LONGEST),
        ("qwen2-causal", True, False, None, 120),
        ("qwen2-causal", False, False, CODE, 120),
    ],
    ids=["card, tied", "card, own head", "mxbai, tied", "mxbai, own head"],
)
def test_rows_and_scores_are_those_of_the_publisher(
    tmp_path: Path, monkeypatch: Any, *, family: str, tied: bool, ends: bool, instruction: str | None, longest: int
) -> None:
    monkeypatch.setattr("export.tasks.yes_no.LONGEST", longest)
    folder = build(tmp_path, tied=tied, ends=ends, family=family)
    checkpoint = read(folder, task="classification", instruction=instruction)
    if family == "qwen3":
        ids, scores = ask(folder, PAIRS, instruction or WEB, longest)
        settings = checkpoint.encoder.config.task_settings
        assert isinstance(settings, ClassificationSettings)
        assert (settings.labels, settings.activation) == (("yes",), "sigmoid")
    else:
        ids, scores = ask_mxbai(folder, PAIRS, instruction, longest)
    found = rows(checkpoint, PAIRS)
    assert [row.input_ids.tolist() for row in found] == ids
    assert [row.truncated for row in found] == [False] * (len(PAIRS) - 1) + [True]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(own) for own in ids], batch_first=True)
    with torch.inference_mode():
        logits = checkpoint.encoder(padded, torch.tensor([len(own) for own in ids])).task_output
    torch.testing.assert_close(logits.sigmoid()[:, 0], torch.tensor(scores), atol=TOLERANCE, rtol=0)
    assert max(scores) - min(scores) > 1000 * TOLERANCE  # they tell pairs apart


def test_the_tokenizer_library_makes_the_same_rows_of_worded_texts(judge: Checkpoint) -> None:
    assert judge.pair_wording is not None
    assert judge.pairs
    for pair, row in zip(PAIRS[:-1], rows(judge, PAIRS[:-1]), strict=True):
        assert judge.tokenizer.encode(*judge.pair_wording.wrap([pair])[0]).ids == row.input_ids.tolist()


def test_tokens_stand_where_their_text_has_them(judge: Checkpoint) -> None:
    pair = ("the cat?", "it sat on mats")
    row = rows(judge, [pair])[0]
    assert row.encoding is not None
    assert row.segments is not None
    parts: list[list[str]] = [[], []]
    for token, segment, (start, end), special in zip(
        row.encoding.tokens, row.segments, row.encoding.offsets, row.encoding.special_tokens_mask, strict=True
    ):
        assert special == (segment is None)
        if segment is None:
            assert (start, end) == (0, 0)
        else:
            parts[segment].append(pair[segment][start:end])
            assert token.replace("Ġ", "").replace("Ċ", "") == pair[segment][start:end].strip()
    assert ["".join(part) for part in parts] == list(pair)
    assert row.encoding.tokens.count("?Ċ") == 1  # a token of the query and of the words behind it


def test_a_query_without_room_for_a_document_is_cut_as_the_card_cuts(tied: Path, judge: Checkpoint) -> None:
    pair = ("what is the cat? " * 40, "a mat")
    assert rows(judge, [pair])[0].input_ids.tolist() == ask(tied, [pair], WEB, LONGEST)[0][0]


TEMPLATE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer \
can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("USUAL") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

""".replace("USUAL", WEB)
# of content in the form that several kinds of input have
PARTS = "| map(attribute='content') | map('first') | map(attribute='text')"


@pytest.mark.parametrize(
    ("change", "prompt", "instruction"),
    [
        (("", ""), None, None),
        (("</think>\n\n", "</think>\n\n\n"), None, CODE),
        (("</think>", "</think>\nAnswer:"), CODE, None),
        ((WEB, "Find tax law"), None, None),
        ((WEB, ""), None, None),
        (('| map(attribute="content")', PARTS), CODE, None),
    ],
    ids=["as it is", "a newline more", "other words behind", "another usual task", "no usual task", "content in parts"],
)
def test_a_logit_score_module_asks_in_the_words_of_the_chat_template(
    folder: Path, change: tuple[str, str], prompt: str | None, instruction: str | None
) -> None:
    add_logit_score(folder, ("yes", "no"), TEMPLATE.replace(*change) if change[0] else TEMPLATE)
    if prompt is not None:
        around = {"prompts": {"code": prompt}, "default_prompt_name": "code"}
        write_json(folder / "config_sentence_transformers.json", around)
    checkpoint = read(folder, instruction=instruction)
    assert "chat_template.jinja" in checkpoint.source.files
    found = rows(checkpoint, PAIRS[:-1])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for pair, row in zip(PAIRS[:-1], found, strict=True):
        texts = [("system", instruction or prompt), *zip(("query", "document"), pair, strict=True)]
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if PARTS in change else text}
            for role, text in texts
            if text is not None
        ]
        assert row.input_ids.tolist() == tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]


@pytest.mark.parametrize(
    ("true", "false", "template", "message"),
    [
        ("cat", "no", TEMPLATE, "scores by the tokens .* and 'no': only 'yes' less 'no'"),
        ("yes", None, TEMPLATE, "scores by the tokens 'yes' and None"),
        ("yes", "no", TEMPLATE.replace("<Document>: ", "<Document>: TEXT "), "other words than Qwen3-Reranker's"),
        ("yes", "no", TEMPLATE.replace("Judge", "Say"), "other words than Qwen3-Reranker's.*Say whether"),
        ("yes", "no", TEMPLATE.replace('"eq", "document"', '"eq", "query"'), "does not hold query and document once"),
        ("yes", "no", "{{ messages[7].content }}", "chat template .* fails: "),
        ("yes", "no", "{% for", "chat template .* fails: "),
        ("yes", "no", "{{ ().__class__.__base__.__subclasses__() }}", "chat template .* fails: .*unsafe"),
        ("yes", "no", None, "has no chat template"),
    ],
)
def test_what_a_logit_score_module_says_is_never_skipped(
    folder: Path, true: str, false: str | None, template: str | None, message: str
) -> None:
    add_logit_score(folder, (true, false), template)
    for task in (None, "classification"):
        with pytest.raises(UnsupportedModel, match=message):
            read(folder, task=task)


def test_an_instruction_that_a_chat_template_has_no_place_for_is_refused(folder: Path) -> None:
    start, rest = TEMPLATE.split("{{", 1)
    add_logit_score(folder, ("yes", "no"), start + WEB + rest.partition("}}")[2])
    assert read(folder).pairs
    with pytest.raises(UnsupportedModel, match="has no place for this instruction"):
        read(folder, instruction=CODE)


def add_logit_score(folder: Path, words: tuple[str, str | None], template: str | None) -> None:
    """Makes it a reranker in sentence-transformers' form, that scores by these words."""
    tokenizer = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [None if word is None else tokenizer.encode(word).ids[0] for word in words]
    write_modules(folder, {"": "Transformer", "1_LogitScore": "LogitScore"})
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "text-generation"})
    said = dict(zip(("true_token_id", "false_token_id"), ids, strict=True))
    write_json(folder / "1_LogitScore" / "config.json", said)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


def test_a_language_model_is_a_reranker_only_where_asked_for(tied: Path) -> None:
    with pytest.raises(UnsupportedModel, match="Qwen3ForCausalLM, which is for none.*--task classification exports it"):
        read(tied)
    with pytest.raises(UnsupportedModel, match="an instruction is for language models"):
        read(tied, task="embedding", instruction=CODE)
    assert read(tied, task="embedding").encoder.config.causal


def test_limits_and_what_is_no_such_model(folder: Path) -> None:
    change_json(folder / "config.json", max_position_embeddings=9000)
    assert read(folder, task="classification").max_sequence_length == 8192
    change_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(UnsupportedModel, match="task classification are malformed: 'lm_head.weight'"):
        read(folder, task="classification")
    text = (folder / "tokenizer.json").read_text().replace("</think>", "</thought>")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UnsupportedModel, match="no token </think>: a language model of this type is"):
        read(folder, task="classification")
    with pytest.raises(UnsupportedModel, match="model_type 'gemma3_text': one of qwen3, qwen2"):
        question_of({"model_type": "gemma3_text"})
