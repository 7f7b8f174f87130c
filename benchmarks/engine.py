"""How fast is the graph of a large encoder, in each precision, compared with `transformers`, ONNX and OpenVINO?

All compute the hidden states of one text, with one thread, without HTTP and without a tokenizer; the graph and
`transformers` in float32 and in one process, OpenVINO in its own, in float32 and, where the processor has it, bf16.
`transformers` uses PyTorch's scaled dot-product attention, its default. ONNX is that network as PyTorch exports it,
optimized by ONNX Runtime as it loads. Times are of the processor, taken in turns.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.report import Spread, Table, emit, in_turns, processor_seconds
from benchmarks.peers.peers import PeerProcess, start_worker
from benchmarks.peers.worker import Task
from export.checkpoint import FAMILIES, build_encoder
from export.exporter import write_graph
from export.graph import trace
from export.openvino import PlainSession, is_installed, plain_graph
from export.precision import quantize
from export.runtime import Session
from export.texts import Inputs, TextBatch, graph_inputs
from model.artifact import GRAPH, LAST_HIDDEN_STATE, PLAIN_GRAPH
from model.config import EncoderConfig
from model.encoder import Encoder
from model.processor import vector_instructions

IntArray = NDArray[np.int64]
LONGEST = 2048
FEW_WORDS = 30_522  # of a network with fewer layers: a larger table of words takes memory and no time
TINY: Mapping[str, Any] = {"num_hidden_layers": 2, "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
EUROBERT = {"num_attention_heads": 12, "num_key_value_heads": 12, "hidden_size": 768, "intermediate_size": 3072, **IDS}
QWEN3 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, **IDS}
BERT = {"num_attention_heads": 12, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
MODERNBERT = {"vocab_size": 50_368, "num_hidden_layers": 22, "intermediate_size": 1152, "cls_token_id": 2}
NOMIC = {**BERT, "vocab_size": 30_528, "pad_token_id": 0}
GTE = {**BERT, "vocab_size": 30_528, "type_vocab_size": 0, "rope_theta": 500_000, "pad_token_id": 0}
T5 = {"vocab_size": 32_128, "d_model": 768, "d_kv": 64, "num_heads": 12, "d_ff": 3072, "feed_forward_proj": "relu"}
GEMMA = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 1152, **IDS}
# As their config.json on the hub says.
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert-base": ("bert", {**BERT, "vocab_size": 30_522}),
    "modernbert-base": ("modernbert", {**BERT, **MODERNBERT, **IDS, "sep_token_id": 3}),
    "nomic-base": ("nomic_bert", NOMIC),
    "gte-base": ("gte", GTE),
    "gemma-300m": (
        "gemma3_text",
        {
            **GEMMA,
            "vocab_size": 262_144,
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "use_bidirectional_attention": True,
        },
    ),
    "t5-base": ("t5", {**T5, "num_layers": 12, "pad_token_id": 0, "eos_token_id": 1}),
    "eurobert-210m": ("eurobert", {**EUROBERT, "vocab_size": 128_256, "num_hidden_layers": 12}),
    "qwen3-0.6b": ("qwen3", {**QWEN3, "vocab_size": 151_669, "hidden_size": 1024, "num_hidden_layers": 28}),
    "tiny": ("qwen3", {**QWEN3, "head_dim": 4, **TINY}),
}
BF16_INSTRUCTIONS = {"amx_bf16", "avx512_bf16"}  # without them OpenVINO would compute in float32 under bf16's name
COLUMNS = ("tokens", "engine", "cpu_ms", "by_the_graph", "lowest", "highest", "difference")
GRAPH_NAME, TRANSFORMERS_NAME, ONNX_NAME = "the graph", "transformers", "transformers as ONNX"


def draw(name: str, layers: int | None = None) -> Any:
    """The network as `transformers` initialises it; one with fewer layers has at most `FEW_WORDS` words."""
    try:
        import transformers  # noqa: PLC0415 - of the extra `test`, and seconds to import
    except ImportError as error:
        raise CannotMeasure("transformers is not installed: pip install -e '.[test]'") from error
    model_type, settings = NETWORKS[name]
    if layers is not None:
        settings = {**settings, "num_hidden_layers": layers, "vocab_size": min(settings["vocab_size"], FEW_WORDS)}
    auto: Any = transformers.T5EncoderModel if model_type == "t5" else transformers.AutoModel
    config = transformers.AutoConfig.for_model(model_type, max_position_embeddings=LONGEST, **settings)
    torch.manual_seed(0)
    return (auto(config) if model_type == "t5" else auto.from_config(config)).eval()


Run = Callable[[], Any]
Engines = Mapping[str, Callable[[IntArray], Run]]  # by name, a maker of runs on token ids [1, S]


def encoder_of(theirs: Any) -> Encoder:
    """The same network as an export reads it."""
    family = FAMILIES[theirs.config.model_type]
    described = family.settle(theirs.config.to_dict(), compared=True)
    config = family.read_config(described, "mean")
    return build_encoder(config, family.read_state(theirs.state_dict(), described))


def load_graph(encoder: Encoder) -> Session:
    """A network as a graph, loaded."""
    with tempfile.TemporaryDirectory() as folder:
        write_graph(trace(encoder), Path(folder))
        return Session(Path(folder) / GRAPH, threads=1)


def of_graph(encoder: Encoder, run: Callable[[Inputs], Any]) -> Callable[[IntArray], Run]:
    """Runs of a graph of this project's."""
    return lambda ids: partial(run, graph_inputs(encoder.config, ids, np.array([ids.size])))


def lower_precisions(encoder: Encoder) -> Engines:
    """The network in int8, and in bf16 where OpenVINO is installed; as an export makes both."""
    batches = [TextBatch(torch.from_numpy(ids := draw_ids(encoder.config, 64)), torch.tensor([ids.size]))]
    quantized, kept = quantize(encoder, batches)
    print(f"int8: {len(kept)} products stay float32", flush=True)
    engines = {f"{GRAPH_NAME}, int8": of_graph(quantized, load_graph(quantized).run)}
    if is_installed():
        with tempfile.TemporaryDirectory() as folder:
            write_graph(trace(encoder), Path(folder))
            onnx_ir.save(plain_graph(Path(folder) / GRAPH, encoder.config), Path(folder) / PLAIN_GRAPH)
            session = PlainSession(Path(folder) / PLAIN_GRAPH, encoder.config, "bf16", 1)
        engines[f"{GRAPH_NAME}, {session.computes_in} in OpenVINO"] = of_graph(encoder, session.run)
    return engines


class HiddenStates(torch.nn.Module):
    """Token ids `[B, S]` to hidden states `[B, S, D]`, the only output that an exported network is asked for."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states."""
        found: torch.Tensor = self.network(input_ids=input_ids).last_hidden_state
        return found


def load_onnx(theirs: Any) -> ort.InferenceSession:
    """The network of `transformers` as PyTorch's own exporter writes it, for one text of any length."""
    theirs.config.use_cache = False  # decoders would return lists of keys and values
    example = torch.ones(1, 8, dtype=torch.long)
    shapes = {"input_ids": {1: torch.export.Dim("sequence", max=LONGEST)}}
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / GRAPH
        network = HiddenStates(theirs).eval()
        torch.onnx.export(network, (example,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def forward(theirs: Any, ids: IntArray) -> NDArray[np.float32]:
    """Hidden states [1, S, D] of `transformers`."""
    with torch.inference_mode():
        found: NDArray[np.float32] = theirs(torch.from_numpy(ids)).last_hidden_state.numpy()
    return found


def draw_ids(config: EncoderConfig, length: int) -> IntArray:
    """[1, length] token ids."""
    return np.random.default_rng(length).integers(3, config.vocab_size, (1, length))


def plan_name(length: int) -> str:
    """The name of the run of one text."""
    return f"{length} tokens"


@contextmanager
def openvino_of(theirs: Any, texts: Sequence[IntArray]) -> Iterator[PeerProcess]:
    """OpenVINO with the same network, in bf16 too where the processor has it.

    Raises:
        CannotMeasure: it is not installed.
    """
    if not is_installed():
        raise CannotMeasure("OpenVINO is not installed: pip install -e '.[openvino]'")
    precisions = ("f32", "bf16") if BF16_INSTRUCTIONS & set(vector_instructions()) else ("f32",)
    with tempfile.TemporaryDirectory() as weights:
        theirs.save_pretrained(weights)
        rows = [[int(index) for index in ids[0]] for ids in texts]
        plans = {plan_name(len(row)): [[place]] for place, row in enumerate(rows)}
        task = Task(weights, 1, ["" for _ in rows], rows, plans, precisions)
        with start_worker(Path(sys.executable), "openvino", task) as process:
            yield process


def compare(engines: Engines, openvino: PeerProcess | None, ids: IntArray, rounds: int) -> list[dict[str, Any]]:
    """A row an engine: its median in milliseconds, and how many times the graph's time it takes, by round.

    The last column is the largest difference from the hidden states of `transformers`.
    """
    runs = {name: make(ids) for name, make in engines.items()}
    ways = {name: partial(processor_seconds, run) for name, run in runs.items()}
    if openvino:
        for name in (name for name in openvino.names if f", {plan_name(ids.size)}, 1x" in name):
            ways[f"OpenVINO {name.partition(', ')[0]}"] = partial(openvino.cpu_seconds, name)
    found = in_turns(ways, rounds)
    states = {GRAPH_NAME: runs[GRAPH_NAME]()[LAST_HIDDEN_STATE]}
    if ONNX_NAME in runs:
        states[ONNX_NAME] = runs[ONNX_NAME]()[0]
    expected = runs[TRANSFORMERS_NAME]()
    differences = {name: float(np.abs(one - expected).max()) for name, one in states.items()}
    rows = []
    for name, seconds in found.items():
        ratios = Spread.of([other / own for other, own in zip(seconds, found[GRAPH_NAME], strict=True)])
        figures = (1000 * Spread.of(seconds).median, ratios.median, ratios.lowest, ratios.highest)
        rows.append(dict(zip(COLUMNS, (ids.size, name, *figures, differences.get(name)), strict=True)))
    return rows


@program
def main() -> None:
    """Measures each length."""
    parser = parser_of(
        __doc__, takes="three minutes and 5 GB of memory; qwen3-0.6b wants 10 GB, OpenVINO as much again", rounds=5
    )
    parser.add_argument("--network", choices=NETWORKS, default="eurobert-210m", help="shape that is initialised")
    parser.add_argument("--layers", type=whole, help="of the network, which then has BERT's number of words")
    parser.add_argument("--precisions", action="store_true", help="the graph in int8 and, in OpenVINO, in bf16 too")
    parser.add_argument("--lengths", type=whole, nargs="+", default=[32, 128, 512], help="tokens of a text")
    parser.add_argument("--onnx", action="store_true", help="compare with the network as PyTorch exports it, too")
    parser.add_argument("--openvino", action="store_true", help="compare with OpenVINO too, which must be installed")
    arguments = parser.parse_args()
    if max(arguments.lengths) > LONGEST:
        parser.error(f"--lengths: at most {LONGEST} tokens")
    torch.set_num_threads(1)
    theirs = draw(arguments.network, arguments.layers)
    encoder = encoder_of(theirs)
    engines: dict[str, Callable[[IntArray], Run]] = {
        GRAPH_NAME: of_graph(encoder, load_graph(encoder).run),
        TRANSFORMERS_NAME: lambda ids: partial(forward, theirs, ids),
        **(lower_precisions(encoder) if arguments.precisions else {}),
    }
    if arguments.onnx:
        onnx = load_onnx(theirs)
        engines[ONNX_NAME] = lambda ids: partial(onnx.run, None, {"input_ids": ids})
    texts = [draw_ids(encoder.config, length) for length in arguments.lengths]
    table = Table("transformers", f"{arguments.network}, one text", COLUMNS)
    with openvino_of(theirs, texts) if arguments.openvino else nullcontext() as openvino:
        for row in (row for ids in texts for row in compare(engines, openvino, ids, arguments.rounds)):
            table.add(**row)
    emit("engine transformers", [table], network=arguments.network, rounds=arguments.rounds)
