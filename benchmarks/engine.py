"""How fast is the graph of a large encoder, in each precision, compared with `transformers`, ONNX and OpenVINO?

All compute the hidden states of one text, with one thread, without HTTP and without a tokenizer; the graph and
`transformers` in float32 and in one process, OpenVINO in its own, in float32 and, where the processor has it, bf16.
`transformers` uses PyTorch's scaled dot-product attention, its default. ONNX is that network as PyTorch exports it,
optimized by ONNX Runtime as it loads. Times are of the processor, taken in turns.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.report import Table, compare_seconds, emit, processor_seconds
from benchmarks.peers.peers import PeerProcess, start_worker
from benchmarks.peers.workers import Task
from export.checkpoint import FAMILIES, build_encoder
from export.exporter import write_graph
from export.graph import trace
from export.openvino import PlainSession, is_installed, plain_graph
from export.precision import quantize
from export.runtime import Session
from export.texts import TextBatch, graph_inputs
from model.artifact import GRAPH, LAST_HIDDEN_STATE, PLAIN_GRAPH
from model.config import EncoderConfig
from model.encoder import Encoder
from model.processor import BF16_INSTRUCTIONS, vector_instructions

IntArray = NDArray[np.int64]
LONGEST = 2048
FEW_WORDS = 30_522  # of a network with fewer layers: a larger table of words takes memory and no time
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
BERT = {"num_attention_heads": 12, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
QWEN3 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, **IDS}
MODERNBERT = {"vocab_size": 50_368, "num_hidden_layers": 22, "intermediate_size": 1152, "cls_token_id": 2}
GTE = {**BERT, "vocab_size": 30_528, "type_vocab_size": 0, "rope_theta": 500_000, "pad_token_id": 0}
T5 = {"vocab_size": 32_128, "d_model": 768, "d_kv": 64, "num_heads": 12, "d_ff": 3072, "feed_forward_proj": "relu"}
GEMMA = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 1152, **IDS}
TINY = {"num_hidden_layers": 2, "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "head_dim": 4}
# As their config.json on the hub says.
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert-base": ("bert", {**BERT, "vocab_size": 30_522}),
    "modernbert-base": ("modernbert", {**BERT, **MODERNBERT, **IDS, "sep_token_id": 3}),
    "nomic-base": ("nomic_bert", {**BERT, "vocab_size": 30_528, "pad_token_id": 0}),
    "gte-base": ("gte", GTE),
    "gemma-300m": (
        "gemma3_text",
        {**BERT, **GEMMA, "vocab_size": 262_144, "num_hidden_layers": 24, "use_bidirectional_attention": True},
    ),
    "t5-base": ("t5", {**T5, "num_layers": 12, "pad_token_id": 0, "eos_token_id": 1}),
    "eurobert-210m": ("eurobert", {**BERT, **IDS, "num_key_value_heads": 12, "vocab_size": 128_256}),
    "qwen3-0.6b": ("qwen3", {**QWEN3, "vocab_size": 151_669, "hidden_size": 1024, "num_hidden_layers": 28}),
    "tiny": ("qwen3", {**QWEN3, **TINY}),
}
GRAPH_NAME, TRANSFORMERS_NAME, ONNX_NAME = "the graph", "transformers", "transformers as ONNX"


def draw(name: str, layers: int | None = None, longest: int = LONGEST) -> Any:
    """The network as `transformers` initialises it; one with fewer layers has at most `FEW_WORDS` words."""
    import transformers  # noqa: PLC0415 - of the extra `test`, and seconds to import

    model_type, settings = NETWORKS[name]
    if layers is not None:
        settings = {**settings, "num_hidden_layers": layers, "vocab_size": min(settings["vocab_size"], FEW_WORDS)}
    auto: Any = transformers.T5EncoderModel if model_type == "t5" else transformers.AutoModel
    config = transformers.AutoConfig.for_model(model_type, max_position_embeddings=longest, **settings)
    torch.manual_seed(0)
    return (auto(config) if model_type == "t5" else auto.from_config(config)).eval()


Run = Callable[[], Any]
Engines = dict[str, Callable[[IntArray], Run]]  # by name, a maker of runs on token ids [1, S]


def encoder_of(theirs: Any) -> Encoder:
    """The same network as an export reads it."""
    family = FAMILIES[theirs.config.model_type]
    described = family.settle(theirs.config.to_dict(), compared=True)
    config = family.read_config(described, "mean")
    return build_encoder(config, family.read_state(theirs.state_dict(), described))


def of_graph(encoder: Encoder) -> Callable[[IntArray], Run]:
    """Runs of a network as a graph."""
    with tempfile.TemporaryDirectory() as folder:
        write_graph(trace(encoder), Path(folder))
        return _runs_of(Session(Path(folder) / GRAPH, threads=1), encoder.config)


def _runs_of(session: Session | PlainSession, config: EncoderConfig) -> Callable[[IntArray], Run]:
    return lambda ids: partial(session.run, graph_inputs(config, ids, np.array([ids.size])))


def lower_precisions(encoder: Encoder) -> Engines:
    """The network in int8, and in bf16 where OpenVINO is installed; as an export makes both."""
    config = encoder.config
    batches = [TextBatch(torch.from_numpy(ids := draw_ids(config, 64)), torch.tensor([ids.size]))]
    quantized, kept = quantize(encoder, batches)
    print(f"int8: {len(kept)} products stay float32", flush=True)
    engines: Engines = {f"{GRAPH_NAME}, int8": of_graph(quantized)}
    if is_installed():
        with tempfile.TemporaryDirectory() as folder:
            write_graph(trace(encoder), Path(folder))
            onnx_ir.save(plain_graph(Path(folder) / GRAPH, config), Path(folder) / PLAIN_GRAPH)
            session = PlainSession(Path(folder) / PLAIN_GRAPH, config, "bf16", 1)
        engines[f"{GRAPH_NAME}, {session.computes_in} in OpenVINO"] = _runs_of(session, config)
    return engines


class _HiddenStates(torch.nn.Module):
    """Token ids `[B, S]` to hidden states `[B, S, D]`, the only output that an exported network is asked for."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.network(input_ids=input_ids).last_hidden_state
        return found


def of_onnx(theirs: Any) -> Callable[[IntArray], Run]:
    """Runs of the network of `transformers` as PyTorch's own exporter writes it, for one text of any length."""
    theirs.config.use_cache = False  # decoders would return lists of keys and values
    example = torch.ones(1, 8, dtype=torch.long)
    shapes = {"input_ids": {1: torch.export.Dim("sequence", max=LONGEST)}}
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / GRAPH
        network = _HiddenStates(theirs).eval()
        try:
            torch.onnx.export(network, (example,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            raise CannotMeasure(f"--onnx: PyTorch does not export this network: {error.__cause__ or error}") from error
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda ids: partial(session.run, None, {"input_ids": ids})


def of_transformers(theirs: Any) -> Callable[[IntArray], Run]:
    """Runs of `transformers`, to hidden states [1, S, D]."""

    def forward(ids: IntArray) -> NDArray[np.float32]:
        with torch.inference_mode():
            found: NDArray[np.float32] = theirs(torch.from_numpy(ids)).last_hidden_state.numpy()
        return found

    return lambda ids: partial(forward, ids)


def draw_ids(config: EncoderConfig, length: int) -> IntArray:
    """[1, length] token ids."""
    return np.random.default_rng(length).integers(3, config.vocab_size, (1, length))


@contextmanager
def openvino_of(theirs: Any, texts: Sequence[IntArray]) -> Iterator[list[PeerProcess]]:
    """OpenVINO with the same network, in bf16 too where the processor has it; nothing without texts."""
    if not texts:
        yield []
        return
    precisions = ("f32", "bf16") if not BF16_INSTRUCTIONS.isdisjoint(vector_instructions()) else ("f32",)
    rows = [ids[0].tolist() for ids in texts]
    plans = {f"{len(row)} tokens": [[place]] for place, row in enumerate(rows)}
    with tempfile.TemporaryDirectory() as weights, ExitStack() as stack:
        theirs.save_pretrained(weights)
        tasks = [Task(weights, 1, [], rows, plans, precision) for precision in precisions]
        yield [stack.enter_context(start_worker(Path(sys.executable), "openvino", task)) for task in tasks]


def compare(engines: Engines, peers: Sequence[PeerProcess], ids: IntArray, rounds: int) -> list[dict[str, Any]]:
    """A row an engine, beside the graph's; with the largest difference from the hidden states of `transformers`."""
    runs = {name: make(ids) for name, make in engines.items()}
    ways = {name: partial(processor_seconds, run) for name, run in runs.items()}
    for peer in peers:
        name = next(name for name in peer.names if f", {ids.size} tokens, 1x" in name)
        ways[f"OpenVINO {name.partition(', ')[0]}"] = partial(peer.cpu_seconds, name)
    states = {GRAPH_NAME: runs[GRAPH_NAME]()[LAST_HIDDEN_STATE]}
    if ONNX_NAME in runs:
        states[ONNX_NAME] = runs[ONNX_NAME]()[0]
    expected = runs[TRANSFORMERS_NAME]()
    differences = {name: float(np.abs(one - expected).max()) for name, one in states.items()}
    rows = compare_seconds(ways, rounds)
    return [{"tokens": ids.size, **row, "difference": differences.get(row["way"])} for row in rows]


@program
def main() -> None:
    """Measures each length."""
    takes = "three minutes and 5 GB of memory; qwen3-0.6b wants 10 GB, OpenVINO twice as much again"
    parser = parser_of(__doc__, takes=takes, rounds=5, lengths=[32, 128, 512])
    parser.add_argument("--network", choices=NETWORKS, default="eurobert-210m", help="shape that is initialised")
    parser.add_argument("--layers", type=whole, help="of the network, which then has BERT's number of words")
    parser.add_argument("--precisions", action="store_true", help="the graph in int8 and, in OpenVINO, in bf16 too")
    parser.add_argument("--onnx", action="store_true", help="compare with the network as PyTorch exports it, too")
    parser.add_argument("--openvino", action="store_true", help="compare with OpenVINO too, which must be installed")
    arguments = parser.parse_args()
    if max(arguments.lengths) > LONGEST:
        parser.error(f"--lengths: at most {LONGEST} tokens")
    torch.set_num_threads(1)
    theirs = draw(arguments.network, arguments.layers)
    encoder = encoder_of(theirs)
    engines: Engines = {GRAPH_NAME: of_graph(encoder), TRANSFORMERS_NAME: of_transformers(theirs)}
    if arguments.precisions:
        engines |= lower_precisions(encoder)
    if arguments.onnx:
        engines[ONNX_NAME] = of_onnx(theirs)
    texts = [draw_ids(encoder.config, length) for length in arguments.lengths]
    table = Table("transformers", f"{arguments.network}, one text")
    with openvino_of(theirs, texts if arguments.openvino else []) as peers:
        for ids in texts:
            table.rows += compare(engines, peers, ids, arguments.rounds)
    emit("engine transformers", [table], network=arguments.network, rounds=arguments.rounds)
