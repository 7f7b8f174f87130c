"""Graphs without the service around them: explaining through the network, and blocks of queries under a window."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch

from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Table, compare_seconds, emit, processor_seconds
from export.graph import trace
from export.runtime import Session
from export.texts import graph_inputs
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
    artifacts = {str(path): Artifact.open(path) for path in arguments.artifacts}
    decomposers = {path: OnnxDecomposer(artifact) for path, artifact in artifacts.items()}
    smallest = min(artifact.manifest.config.vocab_size for artifact in artifacts.values())
    table = Table("explaining", "explaining a text")
    for tokens in arguments.tokens:
        text = WholeText(np.random.default_rng(tokens).integers(0, smallest, tokens))
        ways = {path: partial(processor_seconds, partial(explain, found, text)) for path, found in decomposers.items()}
        table.rows += [{"tokens": tokens, **row} for row in compare_seconds(ways, arguments.rounds)]
    emit("attention explaining", [table])


def explain(decomposer: OnnxDecomposer, text: WholeText) -> None:
    """All runs of a text."""
    for sources in source_runs(text):
        decomposer.run(text, sources, Cancellation())


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
    graphs = dict(zip(("blocks", "dense"), sessions(config), strict=True))
    table = Table("windows", "one text: local layers in blocks, and dense")
    for length in arguments.lengths:
        ids = np.random.default_rng(length).integers(0, config.vocab_size, (1, length))
        inputs = graph_inputs(config, ids, np.array([length]))
        ways = {name: partial(processor_seconds, partial(graph.run, inputs)) for name, graph in graphs.items()}
        table.rows += [{"tokens": length, **row} for row in compare_seconds(ways, arguments.rounds)]
    emit("attention windows", [table], layers=arguments.layers, rounds=arguments.rounds)


def config_of(layers: int, positions: int) -> EncoderConfig:
    """ModernBERT-base (Warner et al. 2024, table 4) with fewer layers and a small vocabulary."""
    biases = ("up_bias", "down_bias", "attention_bias", "output_bias", "norm_bias")
    without: dict[str, Any] = dict.fromkeys(biases, False)
    return EncoderConfig(
        vocab_size=1000,
        hidden_size=768,
        num_heads=(12,) * layers,
        d_k=64,
        d_v=64,
        intermediate_size=1152,
        max_positions=positions,
        gated=True,
        **without,
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
