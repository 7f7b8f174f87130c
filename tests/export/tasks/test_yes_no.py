"""Language models that judge pairs, against the code of Qwen3-Reranker's card and the steps of mxbai-rerank-v2's."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer

from export.checkpoint import Checkpoint, read_checkpoint
from export.errors import UnsupportedModel
from export.sources import Folder
from model.config_parts import ClassificationSettings
from service.errors import Invalid
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer
from tests.family_models import MODELS, draw, save
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


def served(checkpoint: Checkpoint) -> Tokenizer:
    """The service's tokenizer of what would be exported."""
    made = FastTokenizer.from_str(checkpoint.tokenizer.to_str())
    return Tokenizer(made, checkpoint.max_sequence_length, threads=1, pair_wording=checkpoint.pair_wording)


def rows(checkpoint: Checkpoint, pairs: Sequence[tuple[str, str]], **options: Any) -> list[TokenizedInput]:
    tokenizer = served(checkpoint)
    try:
        return asyncio.run(tokenizer.encode_rows(pairs, **options))
    finally:
        tokenizer.close()


@pytest.mark.parametrize(
    ("tied", "ends", "instruction"), [(True, False, None), (False, True, CODE)], ids=["tied", "own-head"]
)
def test_scores_are_those_of_the_card(tmp_path: Path, *, tied: bool, ends: bool, instruction: str | None) -> None:
    folder = build(tmp_path, tied=tied, ends=ends)
    checkpoint = read_checkpoint(
        Folder(folder, "drawn"), task="classification", max_length=LONGEST, instruction=instruction
    )
    ids, scores = ask(folder, PAIRS, instruction or WEB, LONGEST)
    found = rows(checkpoint, PAIRS)
    assert [row.input_ids.tolist() for row in found] == ids
    assert [row.truncated for row in found] == [False] * (len(PAIRS) - 1) + [True]
    padded = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.int64)
    for row, own in zip(padded, ids, strict=True):
        row[: len(own)] = torch.tensor(own)
    with torch.inference_mode():
        logits = checkpoint.encoder(padded, torch.tensor([len(own) for own in ids])).task_output
    settings = checkpoint.encoder.config.task_settings
    assert isinstance(settings, ClassificationSettings)
    assert (settings.labels, settings.activation) == (("yes",), "sigmoid")
    torch.testing.assert_close(logits.sigmoid()[:, 0], torch.tensor(scores), atol=TOLERANCE, rtol=0)
    assert max(scores) - min(scores) > 1000 * TOLERANCE  # they tell pairs apart


@pytest.mark.parametrize(("tied", "instruction"), [(True, None), (False, CODE)], ids=["tied", "own-head"])
def test_scores_are_those_of_mxbai_rerank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tied: bool, instruction: str | None
) -> None:
    folder, longest = build(tmp_path, tied=tied, family="qwen2-causal"), 120
    monkeypatch.setattr("export.tasks.yes_no.LONGEST", longest)
    checkpoint = read_checkpoint(Folder(folder, "drawn"), task="classification", instruction=instruction)
    ids, scores = ask_mxbai(folder, PAIRS, instruction, longest)
    found = rows(checkpoint, PAIRS)
    assert [row.input_ids.tolist() for row in found] == ids
    assert [row.truncated for row in found] == [False] * (len(PAIRS) - 1) + [True]
    for own, score in zip(ids, scores, strict=True):
        with torch.inference_mode():
            logits = checkpoint.encoder(torch.tensor([own]), torch.tensor([len(own)])).task_output
        assert logits.sigmoid().item() == pytest.approx(score, abs=TOLERANCE)
    assert max(scores) - min(scores) > 1000 * TOLERANCE  # they tell pairs apart


def test_a_default_prompt_is_named_as_the_instruction(tmp_path: Path) -> None:
    folder = build_logit_score(tmp_path, ("yes", "no"), TEMPLATE)
    around = {"prompts": {"code": CODE}, "default_prompt_name": "code"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(around))
    with pytest.raises(UnsupportedModel, match="has the default prompt .* name it as --instruction"):
        read_checkpoint(Folder(folder, "drawn"))
    wording = read_checkpoint(Folder(folder, "drawn"), instruction=CODE).pair_wording
    assert wording is not None
    assert CODE in wording.before[0]


def test_the_tokenizer_library_makes_the_same_rows_of_worded_texts(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(Folder(build(tmp_path, tied=True), "drawn"), task="classification")
    assert checkpoint.pair_wording is not None
    assert checkpoint.pairs
    for pair, row in zip(PAIRS[:-1], rows(checkpoint, PAIRS[:-1]), strict=True):
        assert checkpoint.tokenizer.encode(*checkpoint.pair_wording.wrap([pair])[0]).ids == row.input_ids.tolist()


def test_tokens_stand_where_their_text_has_them(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(Folder(build(tmp_path, tied=True), "drawn"), task="classification")
    pair = ("the cat?", "it sat on mats")
    row = rows(checkpoint, [pair])[0]
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


def test_a_query_without_room_for_a_document_is_cut_as_the_card_cuts(tmp_path: Path) -> None:
    folder = build(tmp_path, tied=True)
    checkpoint = read_checkpoint(Folder(folder, "drawn"), task="classification", max_length=LONGEST)
    pair = ("what is the cat? " * 40, "a mat")
    assert rows(checkpoint, [pair])[0].input_ids.tolist() == ask(folder, [pair], WEB, LONGEST)[0][0]


def test_token_ids_are_refused_where_words_stand_around_texts(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(Folder(build(tmp_path, tied=True), "drawn"), task="classification")
    tokenizer = served(checkpoint)
    try:
        with pytest.raises(Invalid, match="send texts, not token ids"):
            tokenizer.join_ids([[[5], [6]]], "longest_first", from_start=False)
    finally:
        tokenizer.close()


TEMPLATE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. <Instruct>: "
    "{{ i }} <Query>: {{ q }} <Document>: {{ d }} <think>"
)


@pytest.mark.parametrize(
    ("true", "false", "template", "message"),
    [
        ("yes", "no", TEMPLATE, ""),
        ("cat", "no", TEMPLATE, "scores by the tokens .* and 'no': only 'yes' less 'no'"),
        ("yes", None, TEMPLATE, "scores by the tokens 'yes' and None"),
        ("yes", "no", "{{ q }} {{ d }}", "chat template .* does not say 'Judge whether"),
        ("yes", "no", None, "chat template .* does not say 'Judge whether"),
    ],
)
def test_what_a_logit_score_module_says_is_never_skipped(
    tmp_path: Path, true: str, false: str | None, template: str | None, message: str
) -> None:
    folder = build_logit_score(tmp_path, (true, false), template)
    for task in (None, "classification"):
        if message:
            with pytest.raises(UnsupportedModel, match=message):
                read_checkpoint(Folder(folder, "drawn"), task=task)
        else:
            assert read_checkpoint(Folder(folder, "drawn"), task=task).pairs


def build_logit_score(directory: Path, words: tuple[str, str | None], template: str | None) -> Path:
    """A reranker in sentence-transformers' form, that scores by these words."""
    folder = build(directory, tied=True)
    tokenizer = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [None if word is None else tokenizer.encode(word).ids[0] for word in words]
    kinds = {"": "base.modules.transformer.Transformer", "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore"}
    entries = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "text-generation"}))
    (folder / "1_LogitScore").mkdir()
    said = dict(zip(("true_token_id", "false_token_id"), ids, strict=True))
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(said))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_texts_are_as_long_as_on_the_card(tmp_path: Path) -> None:
    folder = build(tmp_path, tied=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 9000}))
    checkpoint = read_checkpoint(Folder(folder, "drawn"), task="classification")
    assert checkpoint.max_sequence_length == 8192


def test_a_language_model_is_a_reranker_only_where_asked_for(tmp_path: Path) -> None:
    folder = build(tmp_path, tied=True)
    with pytest.raises(UnsupportedModel, match="Qwen3ForCausalLM, which is for none.*--task classification exports it"):
        read_checkpoint(Folder(folder, "chat"))
    with pytest.raises(UnsupportedModel, match="an instruction is for language models"):
        read_checkpoint(Folder(folder, "chat"), task="embedding", instruction=CODE)


def test_a_tokenizer_without_the_two_answers_is_refused(tmp_path: Path) -> None:
    folder = build(tmp_path, tied=True)
    text = (folder / "tokenizer.json").read_text().replace("</think>", "</thought>")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UnsupportedModel, match="no token </think>: a language model of this type is"):
        read_checkpoint(Folder(folder, "chat"), task="classification")


def test_a_head_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = build(tmp_path, tied=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(UnsupportedModel, match="no lm_head.weight, and tie_word_embeddings does not say"):
        read_checkpoint(Folder(folder, "chat"), task="classification")


def test_other_language_models_are_refused_by_their_type(tmp_path: Path) -> None:
    model = next(model for model in MODELS if model.name == "gemma3")
    folder = save(draw(model), model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Gemma3ForCausalLM"]}))
    with pytest.raises(
        UnsupportedModel, match="model_type 'gemma3_text' are not read as rerankers: Qwen3-Reranker and"
    ):
        read_checkpoint(Folder(folder, "chat"), task="classification")
