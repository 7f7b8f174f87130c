"""Randomly initialised language models that judge pairs, and how two publishers ask them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.family_models import NAMED, draw, save
from tests.task_artifacts import TaskArtifact, export_folder
from tests.tokenizers import qwen_chat

WEB = "Given a web search query, retrieve relevant passages that answer the query"
LONGEST = 500


def build(folder: Path, *, tied: bool, ends: bool = False, family: str = "qwen3") -> Path:
    """A folder of `Qwen3ForCausalLM`; `ends`: whether its tokenizer puts a token behind each text."""
    model = replace(NAMED[family], tokenizer="qwen-chat")
    sizes = {"vocab_size": qwen_chat().get_vocab_size(), "max_position_embeddings": LONGEST, "hidden_size": 24}
    save(draw(model, auto=AutoModelForCausalLM, tie_word_embeddings=tied, **sizes), model, folder)
    settings = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>", "model_max_length": 9999}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if ends:
        tokenizer, end = Tokenizer.from_file(str(folder / "tokenizer.json")), "<|endoftext|>"
        behind = processors.TemplateProcessing(f"$A {end}", f"$A {end} $B {end}", special_tokens=[(end, 0)])
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, behind])
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def ask(
    folder: Path, pairs: Sequence[tuple[str, str]], instruction: str, longest: int
) -> tuple[list[list[int]], list[float]]:
    """Token ids and scores, by the code of https://huggingface.co/Qwen/Qwen3-Reranker-0.6B."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).train(False)
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    before, behind = (tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix))
    texts = [f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {doc}" for query, doc in pairs]
    room = longest - len(before) - len(behind)
    inputs = tokenizer(texts, padding=False, truncation="longest_first", return_attention_mask=False, max_length=room)
    ids = [before + own + behind for own in inputs["input_ids"]]
    padded = tokenizer.pad({"input_ids": ids}, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**padded).logits[:, -1, :]
    true, false = logits[:, tokenizer.convert_tokens_to_ids("yes")], logits[:, tokenizer.convert_tokens_to_ids("no")]
    chosen = torch.nn.functional.log_softmax(torch.stack([false, true], dim=1), dim=1)
    return ids, chosen[:, 1].exp().tolist()


def ask_mxbai(
    folder: Path, pairs: Sequence[tuple[str, str]], instruction: str | None, longest: int
) -> tuple[list[list[int]], list[float]]:
    """Token ids and scores, by the steps of `MxbaiRerankV2` in https://github.com/mixedbread-ai/mxbai-rerank.

    Prefix, query, line's end, document, line's end, task and suffix are tokenised one by one; `longest` is of query,
    line's end and document, and the document is cut. The score is the sigmoid of one logit less the other.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).train(False)
    told = "" if instruction is None else f"instruction: {instruction}\n"
    prefix, line, task, suffix = (
        tokenizer.encode(text, add_special_tokens=False)
        for text in (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n",
            "\n",
            "You are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
            "<|im_end|>\n<|im_start|>assistant\n",
        )
    )
    ids, scores = [], []
    one, zero = (tokenizer.encode(answer, add_special_tokens=False)[0] for answer in "10")
    for query, document in pairs:
        query_ids = tokenizer.encode(f"{told}query: {query}", add_special_tokens=False)
        document_ids = tokenizer.encode(f"document: {document}", add_special_tokens=False)
        ids.append([*prefix, *[*query_ids, *line, *document_ids][:longest], *line, *task, *suffix])
        with torch.inference_mode():
            logits = model(torch.tensor(ids[-1:])).logits[0, -1]
        scores.append(torch.sigmoid(logits[one] - logits[zero]).item())
    return ids, scores


def make_yes_no(directory: Path) -> TaskArtifact:
    """A language model of three layers as a reranker: causal, four query heads on two heads of keys and values."""
    folder = build(directory / "folder", tied=True)
    return export_folder(folder, directory, "fp32", task="classification", explains=False)
