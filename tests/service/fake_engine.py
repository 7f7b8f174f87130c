"""A small artifact with a fake backend at the seam: everything else of the service is real."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from model.artifact import (
    EXPLAIN_GRAPH,
    GRAPH,
    TOKENIZER,
    Artifact,
    Defaults,
    Manifest,
    Source,
    describe_files,
    write_manifest,
)
from model.config import EncoderConfig
from polyhead import Engine
from service.batching.decompositions import DecompositionQueue
from service.inference.backend import (
    Backend,
    Batch,
    BatchOutput,
    Cancellation,
    Decomposer,
    Float32Array,
    Int64Array,
    TokenParts,
    WholeText,
)
from service.observability.stages import BatchRecord
from service.runner import Runner, make_batcher, plan_runtime
from service.settings import Settings
from service.tokenization.tokenizer import Tokenizer

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat", "dog", "##s", "run", "slow")
CLS, SEP = 2, 3
WORD_IDS = {word: index for index, word in enumerate(VOCABULARY)}
POISON = WORD_IDS["slow"]  # the fake backend can be told to fail or to wait on it
HIDDEN_SIZE = 8
NUM_HEADS = (2, 3, 0)
MAX_LENGTH = 16
MODEL_NAME = "tests/fake"
INPUTS = ("input_ids", "lengths", "attention_layers", "norm_layers", "head_gates")


class FakeBackend:
    """Vectors and weights that follow from the ids alone, so that tests can compute them again.

    Attributes:
        batches: every batch that ran.
        gate: runs wait until it is set.
        seconds: how long each run takes.
        fails: whether a batch with the word "slow" in it raises.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.gate = threading.Event()
        self.gate.set()
        self.seconds = 0.0
        self.fails = False
        self.is_closed = False

    def run(self, batch: Batch) -> BatchOutput:
        self.batches.append(batch)
        self.gate.wait(30)
        if self.seconds:
            time.sleep(self.seconds)
        if self.fails and (batch.input_ids == POISON).any():
            raise RuntimeError("the fake backend was told to fail")
        hidden = hidden_states(batch.input_ids)
        mask = np.arange(batch.input_ids.shape[1]) < batch.lengths[:, np.newaxis]
        pooled = (hidden * mask[:, :, np.newaxis]).sum(axis=1) / batch.lengths[:, np.newaxis]
        attentions = {layer: self._attention(batch, layer) for layer in batch.attention_layers}
        norms = {layer: value_norms(batch.input_ids, layer) for layer in batch.attention_layers if batch.wants_norms}
        return BatchOutput(pooled.astype(np.float32), hidden if batch.wants_tokens else None, attentions, norms)

    def warm_up(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def _attention(self, batch: Batch, layer: int) -> Float32Array:
        size = batch.input_ids.shape[1]
        weights = np.zeros((len(batch.lengths), NUM_HEADS[layer], size, size), dtype=np.float32)
        for row, (ids, length) in enumerate(zip(batch.input_ids, batch.lengths, strict=True)):
            weights[row, :, :length, :length] = attention_weights(ids[:length], layer)
        return weights


class FakeDecomposer:
    """Parts that follow from the ids alone: three quarters of each token's share of the mean; the rest is the biases'.

    Attributes:
        sources: places that were asked for, a run each.
        gate: runs wait until it is set, or are cancelled.
        fails: whether a text with the word "slow" in it raises.
    """

    def __init__(self) -> None:
        self.sources: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def run(self, text: WholeText, sources: Int64Array, cancellation: Cancellation) -> TokenParts:
        self.sources.append(sources.tolist())
        cancellation.on_cancel(self.gate.set)
        self.gate.wait(30)
        if cancellation.is_cancelled or (self.fails and (text.input_ids == POISON).any()):
            raise RuntimeError("the fake decomposer was told to fail")
        hidden = hidden_states(text.input_ids)
        shares = np.ones((len(NUM_HEADS), len(sources)), dtype=np.float32) / (1 + np.arange(len(NUM_HEADS)))[:, None]
        parts = (0.75 / len(hidden) * hidden[sources]).astype(np.float32)
        return TokenParts(parts, hidden.mean(axis=0), shares.astype(np.float32))


def hidden_states(input_ids: Int64Array) -> Float32Array:
    """[..., S] -> [..., S, D]."""
    angles = input_ids[..., np.newaxis] * np.arange(1, HIDDEN_SIZE + 1) * 0.37
    states: Float32Array = np.sin(angles + 0.5).astype(np.float32)
    return states


def attention_weights(input_ids: Int64Array, layer: int) -> Float32Array:
    """[n] -> [H_l, n, n]; rows sum to 1."""
    heads = np.arange(1, NUM_HEADS[layer] + 1)[:, np.newaxis, np.newaxis]
    scores = np.cos(heads * input_ids[:, np.newaxis] + (layer + 1) * input_ids[np.newaxis, :])
    exponentials = np.exp(scores)
    weights: Float32Array = (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)
    return weights


NO_PROMPTS = Defaults(pooling="mean", normalize=True, prompts={}, default_prompt_name=None)


def value_norms(input_ids: Int64Array, layer: int) -> Float32Array:
    """[..., n] -> [..., H_l, n], different for every token and head."""
    heads = np.arange(1, NUM_HEADS[layer] + 1)[:, np.newaxis]
    norms: Float32Array = (1.5 + np.sin(heads + input_ids[..., np.newaxis, :] + layer)).astype(np.float32)
    return norms


def write_fake_artifact(
    directory: Path, defaults: Defaults = NO_PROMPTS, *, inputs: tuple[str, ...] = INPUTS, special_tokens: bool = True
) -> Path:
    """An artifact directory whose graph is never opened; its tokenizer adds special tokens unless told otherwise."""
    directory.mkdir(parents=True, exist_ok=True)
    for graph in (GRAPH, EXPLAIN_GRAPH):
        (directory / graph).write_bytes(b"no graph: a fake stands in")
    tokenizer = make_tokenizer()
    if not special_tokens:
        tokenizer.post_processor = None
    tokenizer.save(str(directory / TOKENIZER))
    write_manifest(directory, make_manifest(directory, defaults, inputs=inputs))
    return directory


def make_manifest(directory: Path, defaults: Defaults = NO_PROMPTS, *, inputs: tuple[str, ...] = INPUTS) -> Manifest:
    return Manifest(
        model=MODEL_NAME,
        source=Source(id="tests/fake", revision=None, sha256="0" * 64),
        config=EncoderConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=HIDDEN_SIZE,
            num_heads=NUM_HEADS,
            d_k=4,
            d_v=4,
            intermediate_size=16,
            max_positions=MAX_LENGTH,
        ),
        precision="fp32",
        opset=24,
        inputs=inputs,
        outputs=("pooled", "last_hidden_state"),
        defaults=defaults,
        max_sequence_length=MAX_LENGTH,
        fused_attention={"Attention": len(NUM_HEADS)},
        parity={},
        files=describe_files(directory),
        versions={},
    )


def make_tokenizer() -> FastTokenizer:
    made = FastTokenizer(WordPiece(WORD_IDS, unk_token="[UNK]"))  # noqa: S106 - a token of the vocabulary
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return made


def load_fake_runner(
    settings: Settings,
    on_batch: Callable[[BatchRecord], object] = lambda _: None,
    backend: Backend | None = None,
    max_queue_delay: float = math.inf,
    decomposer: Decomposer | None = None,
    max_length: int = MAX_LENGTH,
) -> Runner:
    """As `Runner.load`, but for backend and decomposer, and for a queue that refuses no one unless told to."""
    artifact = Artifact.open(settings.model)
    runtime = plan_runtime(settings)
    tokenizer = Tokenizer.load(artifact.path(TOKENIZER), max_length, threads=1)
    patient = settings.model_copy(update={"max_queue_delay": max_queue_delay})
    batcher = make_batcher(backend or FakeBackend(), patient, workers=runtime.workers, on_batch=on_batch)
    batcher.start()
    decompositions = DecompositionQueue(
        lambda: decomposer or FakeDecomposer(), threads=runtime.workers, max_delay=max_queue_delay
    )
    return Runner(artifact, tokenizer, batcher, runtime, decompositions)


def load_fake_engine(settings: Settings, backend: Backend | None = None) -> Engine:
    """As `Engine.load`, over a fake backend."""
    return Engine(load_fake_runner(settings, backend=backend))
