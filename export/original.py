"""Compares a checkpoint, as it was read, with the library that it was made for.

A graph is verified against our own encoder (`export.verify`), which cannot see a setting that the reader of
config.json overlooked. So `transformers` and `sentence-transformers`, if they are installed (extra `verify`), load the
checkpoint too, and both sides read the same texts, one at a time in float32.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.models import Unigram
from torch import Tensor

from export.checkpoint import RENAMED, Checkpoint
from export.errors import ParityError
from export.modules import ROUTER, find_network, read_modules
from export.sources import COLBERT_LAYER, read_json
from export.tasks import yes_no
from export.tokenizer import AS_THEY_STAND, FLAGGED, FLAGS, UNIGRAM_KINDS, load_tokenizer, read_settings
from model.config import EncoderConfig
from model.config_parts import MultiVectorSettings, Task
from model.encoder import EncoderOutput

LIBRARIES = ("transformers", "sentence-transformers")
MISSING = "transformers and sentence-transformers are not installed"
HOW = "pip install 'polyhead[verify]', and export again, compares it with the original"
# Two float32 evaluations of one network, relative to the largest value (or 1): published networks of up to 24 layers
# differ by 1e-6 to 3e-5. A setting that is read wrongly changes more: 0.2 to 5 for scaled rotary positions.
TOLERANCE = 2e-4
LONGEST = 128  # tokens of a text; more would only cost time
TEXTS = (
    "The cat sat on the mat.",
    "A",
    "Ein Vogel fliegt über den Fluß, während es regnet; naïve café, Ærø.",
    "日本語の文章です。中文句子，标点。 한국어 문장입니다.",
    "def add(a, b):\n\treturn a + b  # 3.14e-10 == 0x1F\n\n\n",
    " leading, trailing and   inner   spaces ",
    "ALL CAPITALS! and camelCase; e-mail@example.org https://example.org/?q=1&r=2",
    "🙂👍🏽 emoji, a zero\u200bwidth space, e\u0301 combined, ﬁ ligature, ½",
    "How are attention weights computed? " * 40,
)
PAIRS = tuple(zip(TEXTS, TEXTS[2:] + TEXTS[:2], strict=True))
TOKENS_ONLY = (  # a written-out <pad> has the padding's position in RoBERTa's code, and an empty text no token in some
    "",
    "[CLS] [SEP] [MASK] <s> </s> <pad> <unk> <mask> <|im_end|> written out in a text",
)
CLASSIFIERS = ("classification", "token_classification")  # `transformers` reads these whole
FIGURES = ("hidden_states", "attentions", "last_hidden_state", "pooled", "logits", "sparse", "token_vectors")
PROMPTED = 2  # texts that every prompt is put in front of


@dataclass(frozen=True, slots=True)
class Original:
    """A checkpoint as the libraries load it.

    Attributes:
        network: without the task's layers; None if a table of vectors stands for it.
        whole: with the task's layers; None if it cannot be loaded from these files.
        tokenizer: the library's; None if there is none.
    """

    network: Any
    whole: Any = None
    tokenizer: Any = None


@dataclass(slots=True)
class Differences:
    """The largest differences found so far, relative to the tensor's largest value (or 1), by output."""

    texts: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def record(self, kind: str, where: str, found: NDArray[Any], expected: NDArray[Any], text: str) -> None:
        """Compares one tensor; a ParityError says where it first differs."""
        if found.shape != expected.shape:
            raise ParityError(f"{where} has shape {found.shape}, the original's has {expected.shape}")
        if not found.size:
            return
        scale = max(1.0, float(np.abs(expected).max()))
        worst = float(np.abs(found.astype(np.float64) - expected).max()) / scale
        if not worst <= TOLERANCE:  # so that NaN does not pass
            raise ParityError(
                f"{where} is the first that differs from the original, by {worst:.2e} relative to {scale:.3g}, on the "
                f"text {text[:60]!r}; allowed is {TOLERANCE:.0e}. This version does not reproduce the checkpoint; "
                "--against none exports it all the same"
            )
        self.figures[kind] = max(self.figures.get(kind, 0.0), worst)


def not_compared(reason: str) -> dict[str, Any]:
    """What the manifest says of an export that was compared with nothing but itself."""
    return {"compared": False, "reason": reason}


def is_installed() -> bool:
    """Whether the libraries are there."""
    return all(find_spec(name.replace("-", "_")) for name in LIBRARIES)


def describe(original: Mapping[str, Any]) -> str:
    """Says on a line what the network was compared with, or how to have it compared."""
    if original["compared"]:
        libraries = " and ".join(f"{name} {original[name]}" for name in LIBRARIES)
        figures = ", ".join(f"{name} {value:.1e}" for name, value in original.items() if name in FIGURES)
        notes = "".join(f"; {name} {original[name]}" for name in ("tokens", "answer") if name in original)
        return f"equal to {libraries} on {original['texts']} texts, differences at most: {figures}{notes}\n"
    how = f": {HOW}" if original["reason"] == MISSING else ""
    return f"compared with nothing but itself, since {original['reason']}{how}\n"


def compare_with_original(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    """Compares a checkpoint with what the libraries make of the folder that it was read from.

    Returns:
        For the manifest: `compared`, and either the reason why not, or the libraries' versions, the number of texts and
        the largest difference by output.

    Raises:
        ParityError: token ids, a hidden state, attention weights or the answer differ; the first layer is named.
    """
    if not is_installed():
        return not_compared(MISSING)
    if reason := _foreign(checkpoint, folder):
        return not_compared(reason)
    try:
        original = _load(checkpoint, folder)
    except Exception as error:  # the library does not know the network, or its code is the model's own
        return not_compared(f"the libraries do not load it: {' '.join(str(error).split())[:200]}")
    found, notes = Differences(), dict[str, str]()
    if original.network is None:
        found.texts = len(TEXTS)
    else:
        notes = _compare_tokens(checkpoint, original)
        for text in _inputs(checkpoint):
            _compare_network(checkpoint, original.network, text, found)
            found.texts += 1
    if original.whole is not None and ("tokens" not in notes or checkpoint.encoder.config.task in CLASSIFIERS):
        notes |= _compare_answers(checkpoint, original, found)
    versions = {name: version(name) for name in LIBRARIES}
    return {"compared": True, **versions, "texts": found.texts, "tolerance": TOLERANCE, **found.figures, **notes}


def _foreign(checkpoint: Checkpoint, folder: Path) -> str:
    """Why the libraries would make another network of a folder; empty if they would not."""
    described = read_json(find_network(folder) / "config.json", optional=True)
    kind = described.get("model_type"), described.get("position_embedding_type")
    if described.get("auto_map") or kind in RENAMED or "n_embd" in described:
        return "its network is defined by the model's own code, which is never run"
    if checkpoint.source.adapter is not None:
        return "an adapter was merged into its weights"
    return ""


def _load(checkpoint: Checkpoint, folder: Path) -> Original:
    original = _load_library(checkpoint, folder)
    if original.tokenizer is not None:
        _read_as_release_4(original.tokenizer, find_network(folder))
    return original


def _read_as_release_4(tokenizer: Any, network: Path) -> None:
    """Gives the library's tokenizer what release 4 read from a folder and release 5 leaves out.

    That is tokenizer.json's normaliser of SentencePiece's pieces, in whose place classes such as DeBERTa's put one of
    their own, and `add_bos_token` and `add_eos_token` of tokenizer_config.json.
    """
    made, file = getattr(tokenizer, "backend_tokenizer", None), network / "tokenizer.json"
    described = read_json(network / "config.json", optional=True)
    if made is None or not file.is_file() or described.get("model_type") in AS_THEY_STAND:
        return
    settings, kind = read_settings(network)
    stored = load_tokenizer(file)
    if isinstance(made.model, Unigram) and isinstance(stored.model, Unigram):
        made.normalizer = stored.normalizer
        if kind not in UNIGRAM_KINDS:
            made.pre_tokenizer = stored.pre_tokenizer
    if kind in FLAGGED and FLAGS.keys() & settings.keys():
        for name, default in FLAGS.items():
            setattr(tokenizer, name, settings.get(name, default))


def _load_library(checkpoint: Checkpoint, folder: Path) -> Original:
    import sentence_transformers  # noqa: PLC0415 - seconds to import, and an extra
    import transformers  # noqa: PLC0415

    transformers.utils.logging.set_verbosity_error()  # their remarks and progress bars stay off the terminal
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    task, eager = checkpoint.encoder.config.task, {"attn_implementation": "eager"}
    if not any(checkpoint.encoder.config.num_heads):  # a table of vectors
        return Original(None, sentence_transformers.SentenceTransformer(str(folder), device="cpu"))
    network = find_network(folder)
    config = transformers.AutoConfig.from_pretrained(network)
    if task == "classification" and any(module.kind == "Dense" for module in read_modules(folder)):
        options = {**eager, "dtype": torch.float32}
        modules = sentence_transformers.CrossEncoder(str(folder), device="cpu", model_kwargs=options)
        return Original(modules[0].auto_model, modules, modules.tokenizer)
    if task in CLASSIFIERS:
        auto: Any = transformers.AutoModelForTokenClassification
        if task == "classification":
            classes = (transformers.AutoModelForSequenceClassification, transformers.AutoModelForCausalLM)
            auto = classes[checkpoint.pair_wording is not None]
        whole: Any = auto.from_pretrained(network, config=config, dtype=torch.float32, **eager).eval()
        return Original(whole.base_model, whole, transformers.AutoTokenizer.from_pretrained(network))
    made: Mapping[Task, Any] = {
        "embedding": sentence_transformers.SentenceTransformer,
        "sparse": sentence_transformers.SparseEncoder,
        "multi_vector": sentence_transformers.MultiVectorEncoder,
    }
    try:
        whole = made[task](str(folder), device="cpu", model_kwargs={**eager, "dtype": torch.float32})
    except Exception:  # a folder with less than sentence-transformers needs, such as a tokenizer without settings
        is_t5 = config.model_type == "t5"
        auto = transformers.AutoModelForTextEncoding if is_t5 else transformers.AutoModel
        return Original(auto.from_pretrained(network, config=config, dtype=torch.float32, **eager).eval())
    reader = whole[0].sub_modules["document"][0] if type(whole[0]).__name__ == ROUTER else whole[0]
    inner = reader.auto_model
    # Without modules.json the library uses the mean, whatever the model's card says.
    answers = task != "embedding" or (folder / "modules.json").is_file() or checkpoint.defaults.pooling == "mean"
    answers = answers and not (task == "multi_vector" and (network / COLBERT_LAYER).is_file())  # it reads no such file
    return Original(inner.base_model if task == "sparse" else inner, whole if answers else None, whole.tokenizer)


def _inputs(checkpoint: Checkpoint) -> Iterator[tuple[list[int], list[int], str]]:
    """Token ids and types of every text, or pair, that is compared."""
    tokenizer, longest = checkpoint.tokenizer, min(LONGEST, checkpoint.max_sequence_length)
    for text, pair in PAIRS:
        if checkpoint.pair_wording is not None:
            encoding = tokenizer.encode(*checkpoint.pair_wording.wrap([(text[:200], pair[:200])])[0])
        elif checkpoint.pairs:
            encoding = tokenizer.encode(text[:200], pair[:200])
        else:
            encoding = tokenizer.encode(text)
        if encoding.ids:
            yield encoding.ids[:longest], encoding.type_ids[:longest], text


def _compare_tokens(checkpoint: Checkpoint, original: Original) -> dict[str, str]:
    """Compares token ids; returns a note if they cannot be compared."""
    ours, theirs = checkpoint.tokenizer, original.tokenizer
    if theirs is None:
        return {"tokens": "not compared: the libraries load no tokenizer from these files"}
    if checkpoint.pair_wording is not None:
        return {"tokens": "not compared: the words around a pair are ours"}
    model = getattr(getattr(theirs, "backend_tokenizer", None), "model", ours.model)
    kind, their_kind = type(ours.model).__name__, type(model).__name__
    if kind != their_kind:
        return {
            "tokens": f"not compared: tokenizer.json holds {kind}, and the library's class makes {their_kind} of it"
        }
    config, skipped = checkpoint.encoder.config, None
    if config.task == "classification" and config.pooling == "last":
        skipped = original.network.config.pad_token_id  # if it ends a text, the logits are read before it
    prompts = [prompt for prompt in checkpoint.defaults.prompts.values() if prompt]
    for text in (*TEXTS, *TOKENS_ONLY, *(prompt + text for prompt in prompts for text in TEXTS[:PROMPTED])):
        expected = _without_last(theirs(text)["input_ids"], skipped)
        if max(expected, default=0) < ours.get_vocab_size():  # else a special token that the vocabulary does not hold
            _require_ids(ours.encode(text).ids, expected, text)
    if checkpoint.pairs:
        for text, pair in PAIRS:
            found, given = ours.encode(text, pair), theirs(text, pair)
            expected = _without_last(given["input_ids"], skipped)
            _require_ids(found.ids, expected, f"{text} | {pair}")
            if config.type_vocab_size > 1:
                types = given.get("token_type_ids", [0] * len(expected))
                _require_ids(found.type_ids, types[: len(expected)], f"the types of {text} | {pair}")
    return {}


def _without_last(ids: Sequence[int], skipped: int | None) -> Sequence[int]:
    while ids and ids[-1] == skipped:
        ids = ids[:-1]
    return ids


def _require_ids(found: Sequence[int], expected: Sequence[int], text: str) -> None:
    if list(found) != list(expected):
        place = next(i for i, (a, b) in enumerate(zip_longest(found, expected)) if a != b)
        raise ParityError(
            f"token {place} of {text[:60]!r} is {list(found[place : place + 3])}, the original's tokenizer gives "
            f"{list(expected[place : place + 3])}: its class overrules tokenizer.json; save the tokenizer again with "
            "`transformers`, or export with --against none what tokenizer.json says"
        )


def _compare_network(
    checkpoint: Checkpoint, network: Any, text: tuple[list[int], list[int], str], found: Differences
) -> None:
    """Compares hidden states and attention weights layer by layer, on one text: its ids, token types, and itself."""
    ids, types, written = text
    encoder, config = checkpoint.encoder.use("eager"), checkpoint.encoder.config
    states: list[Tensor] = []
    row, given = torch.tensor([ids]), _types(config, types)
    with torch.inference_mode(), ExitStack() as hooks:
        for module in encoder.layers:
            hooks.callback(module.register_forward_hook(lambda _, __, made: states.append(made[0])).remove)
        ours = encoder(row, torch.tensor([len(ids)]), **given)
        given |= {"input_ids": row, "attention_mask": torch.ones_like(row)}
        theirs = network(**given, output_hidden_states=True, output_attentions=True, return_dict=True)
    hidden, weights = theirs.hidden_states, theirs.attentions
    for layer in range(config.num_layers):
        if weights is not None and ours.attentions[layer] is not None and config.num_heads[layer]:
            parts = ours.attentions[layer][0].numpy(), weights[layer][0].numpy()
            found.record("attentions", f"attention of layer {layer}", *parts, written)
        if hidden is not None and layer + 1 < config.num_layers:  # the last one may be behind the final norm
            parts = states[layer].numpy(), hidden[layer + 1][0].numpy()
            found.record("hidden_states", f"the hidden state behind layer {layer}", *parts, written)
    states.append(ours.last_hidden_state[0])
    if config.projections and theirs[0].shape[-1] != config.hidden_size:  # EmbeddingGemma 2 projects before it pools
        states[-1] = encoder.task_layers.get_submodule("projections.0")(states[-1]).detach()
    last = states[-1].numpy(), theirs[0][0].numpy()
    found.record("last_hidden_state", "the last hidden state", *last, written)


def _compare_answers(checkpoint: Checkpoint, original: Original, found: Differences) -> dict[str, str]:
    """Compares the task's outputs: vectors, logits, weights, token vectors; returns a note if it cannot."""
    config = checkpoint.encoder.config
    if config.task in CLASSIFIERS:
        _compare_logits(checkpoint, original.whole, found)
        return {}
    prompts = {prompt for prompt in checkpoint.defaults.prompts.values() if prompt}
    cases = [(text, "") for text in TEXTS] + [(text, prompt) for prompt in sorted(prompts) for text in TEXTS[:PROMPTED]]
    longest = checkpoint.max_sequence_length
    longest = min(longest, getattr(config.task_settings, "document_length", None) or longest)
    for text, prompt in cases:
        encoding = checkpoint.tokenizer.encode(prompt + text)
        if not encoding.ids or len(encoding.ids) > longest:  # where a long text is cut, the service's tests ask
            continue
        ours = _answer(checkpoint, encoding.ids, encoding.type_ids)
        try:
            kind, expected = _their_answer(original.whole, config.task, text, prompt)
        except Exception as error:  # a tokenizer without a padding token, say
            return {"answer": f"not compared: {' '.join(str(error).split())[:160]}"}
        if isinstance(config.task_settings, MultiVectorSettings):
            if "document" in config.task_settings.skipped_in:
                ours = ours[~np.isin(encoding.ids, config.task_settings.skipped_ids)]
            if len(ours) != len(expected):
                continue  # expanded or cut to a length of its own
        if checkpoint.defaults.normalize:
            ours = ours / np.maximum(np.linalg.norm(ours, axis=-1, keepdims=True), 1e-12)
        found.record(kind, "the answer", ours, expected, prompt + text)
    if (table := checkpoint.further_outputs.get("query_weights")) is not None:
        for text in TEXTS:
            options: dict[str, Any] = {"convert_to_sparse_tensor": False, "show_progress_bar": False, "prompt": ""}
            expected = original.whole.encode_query([text], **options)
            ours = np.zeros(len(table), np.float32)
            ids = checkpoint.tokenizer.encode(text, add_special_tokens=False).ids
            ours[ids] = table[ids]
            found.record("sparse", "the answer to a query", ours, expected.cpu().numpy()[0], text)
    return {}


def _compare_logits(checkpoint: Checkpoint, whole: Any, found: Differences) -> None:
    for ids, types, text in _inputs(checkpoint):
        row, given = torch.tensor([ids]), _types(checkpoint.encoder.config, types)
        given |= {"input_ids": row, "attention_mask": torch.ones_like(row)}
        with torch.inference_mode():
            is_modules = isinstance(whole, torch.nn.Sequential)
            logits = whole(given)["scores"][0] if is_modules else whole(**given).logits[0]
        if checkpoint.pair_wording is not None:
            question = yes_no.question_of(whole.config.to_dict())
            tokens = [checkpoint.tokenizer.token_to_id(word) for word in (question.yes, question.no)]
            logits = (logits[-1, tokens[0]] - logits[-1, tokens[1]])[None]
        found.record("logits", "the logits", _answer(checkpoint, ids, types), logits.numpy(), text)


def _answer(checkpoint: Checkpoint, ids: list[int], types: list[int]) -> NDArray[Any]:
    encoder = checkpoint.encoder.use("sdpa")
    with torch.inference_mode():
        output: EncoderOutput = encoder(torch.tensor([ids]), torch.tensor([len(ids)]), **_types(encoder.config, types))
    return output.task_output[0].numpy()


def _types(config: EncoderConfig, types: list[int]) -> dict[str, Tensor]:
    return {"token_type_ids": torch.tensor([types])} if config.type_vocab_size else {}


def _their_answer(whole: Any, task: Task, text: str, prompt: str) -> tuple[str, NDArray[Any]]:
    """What the task's output is called, and the library's for one text."""
    options: dict[str, Any] = {"show_progress_bar": False, "prompt": prompt}
    if task == "sparse":
        return "sparse", whole.encode_document([text], convert_to_sparse_tensor=False, **options).cpu().numpy()[0]
    if task == "multi_vector":
        return "token_vectors", np.asarray(whole.encode_document([text], **options)[0])
    return "pooled", whole.encode([text], **options)[0]
