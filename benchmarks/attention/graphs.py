"""Graphs without the service around them: explaining through the network, and blocks of queries under a window."""

import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir
import torch

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Spread, Table, emit, in_turns, processor_seconds
from export.graph import trace
from export.runtime import Session
from export.texts import Inputs, graph_inputs
from model.artifact import Artifact
from model.attention import LOCAL_ATTENTION_OP
from model.config import EncoderConfig
from model.encoder import Encoder
from service.batching.decompositions import source_runs
from service.inference.backend import Cancellation, WholeText
from service.inference.onnx_backend import OnnxDecomposer

WHOLE_EVERY = 3  # layers
ANY_LENGTH = 1 << 40  # tokens


@program
def explaining() -> None:
    """What does explaining through the network cost? Processor time of a text, by its tokens, on one thread.

    Random token ids, in the runs that the service cuts a text into. Two texts are explained side by side where there
    are two cores. Several artifacts are measured alternately, such as two versions' of the exporter.
    """
    parser = parser_of(explaining.__doc__, takes="a minute an artifact", rounds=5)
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="artifacts in fp32")
    parser.add_argument("--tokens", type=whole, nargs="+", default=[20, 64, 128], help="lengths of the texts")
    arguments = parser.parse_args()
    artifacts = {path: Artifact.open(path) for path in arguments.artifacts}
    decomposers = {path: OnnxDecomposer(artifact) for path, artifact in artifacts.items()}
    table = Table("explaining", "explaining a text")
    for tokens in arguments.tokens:
        smallest = min(artifact.manifest.config.vocab_size for artifact in artifacts.values())
        text = WholeText(np.random.default_rng(tokens).integers(0, smallest, tokens))
        candidates = {path: partial(explaining_seconds, found, text) for path, found in decomposers.items()}
        measured = in_turns(candidates, arguments.rounds)
        for path, seconds in measured.items():
            spread, runs = Spread.of(seconds), len(source_runs(text))
            table.add(
                artifact=str(path), tokens=tokens, runs=runs, processor_ms=1000 * spread.median, spread=str(spread)
            )
    emit("attention explaining", [table])


def explaining_seconds(decomposer: OnnxDecomposer, text: WholeText) -> float:
    """Of this thread, for all runs of a text."""
    started = time.thread_time()
    for sources in source_runs(text):
        decomposer.run(text, sources, Cancellation())
    return time.thread_time() - started


@program
def windows() -> None:
    """What do blocks of queries save where layers see a window, by the length of a text?

    Layers of ModernBERT-base's shape with randomly initialised weights, one in three of them seeing the whole text. The
    same graph is run as it is, and with its local layers dense at any length.
    """
    parser = parser_of(windows.__doc__, takes="two minutes; 8,192 tokens want 5 GB of memory", rounds=5)
    parser.add_argument("--lengths", type=whole, nargs="+", default=[512, 1024, 2048, 4096], help="tokens of a text")
    parser.add_argument("--layers", type=whole, default=3, help="of the network")
    arguments = parser.parse_args()
    config = config_of(arguments.layers, max(2048, *arguments.lengths))
    blocks, dense = sessions(config)
    table = Table("windows", "one text: local layers in blocks, and dense")
    for length in arguments.lengths:
        ids = np.random.default_rng(length).integers(0, config.vocab_size, (1, length))
        inputs = graph_inputs(config, ids, np.array([length]))
        table.add(tokens=length, **compare(blocks, dense, inputs, arguments.rounds))
    emit("attention windows", [table], layers=arguments.layers, rounds=arguments.rounds)


def config_of(layers: int, positions: int) -> EncoderConfig:
    """ModernBERT-base (Warner et al. 2024, table 4) with fewer layers and a small vocabulary."""
    return EncoderConfig(
        vocab_size=1000,
        hidden_size=768,
        num_heads=(12,) * layers,
        d_k=64,
        d_v=64,
        intermediate_size=1152,
        max_positions=positions,
        gated=True,
        up_bias=False,
        down_bias=False,
        attention_bias=False,
        output_bias=False,
        norm_bias=False,
        norm_eps=1e-5,
        pre_norm=True,
        first_attention_norm=False,
        final_norm=True,
        positions="none",
        attention_positions="rotary",
        local_layers=tuple(layer for layer in range(layers) if layer % WHOLE_EVERY),
        window=64,
    )


def sessions(config: EncoderConfig) -> tuple[Session, Session]:
    """The graph as it is exported, and the same one with dense layers; one thread each."""
    torch.manual_seed(0)
    model = trace(Encoder(config).eval().requires_grad_(False))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_ir.save(model, path)
        blocks = Session(path, threads=1)
        for node in model.graph:
            if node.op_type == LOCAL_ATTENTION_OP:
                node.attributes["longest_dense"] = onnx_ir.AttrInt64("longest_dense", ANY_LENGTH)
        onnx_ir.save(model, path)
        return blocks, Session(path, threads=1)


def compare(blocks: Session, dense: Session, inputs: Inputs, rounds: int) -> dict[str, float]:
    """Medians in milliseconds, and how many times as long the dense layers take, by round."""
    candidates = {"blocks": partial(blocks.run, inputs), "dense": partial(dense.run, inputs)}
    found = in_turns({name: partial(processor_seconds, run) for name, run in candidates.items()}, rounds)
    ratios = Spread.of([slow / fast for slow, fast in zip(found["dense"], found["blocks"], strict=True)])
    milliseconds = {f"{name}_cpu_ms": 1000 * Spread.of(seconds).median for name, seconds in found.items()}
    return {**milliseconds, "ratio": ratios.median, "lowest": ratios.lowest, "highest": ratios.highest}
