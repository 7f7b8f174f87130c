"""How fast is the graph of a large encoder beside `transformers` on the same drawn weights?

Both compute the last hidden state of one text in float32, in one process and with as many threads, without HTTP and
without a tokenizer. `transformers` uses PyTorch's scaled dot-product attention, its default.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lib.command import CannotMeasure, parser_of, program, whole
from benchmarks.lib.report import Table, emit
from benchmarks.lib.timing import Spread, in_turns, processor_seconds
from export.checkpoint import FAMILIES, build_encoder
from export.exporter import write_graph
from export.graph import trace
from export.inputs import graph_inputs
from export.runtime import Session
from model.artifact import GRAPH
from model.config import EncoderConfig
from model.graph_names import LAST_HIDDEN_STATE

LONGEST = 2048
TINY: Mapping[str, Any] = {"num_hidden_layers": 2, "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
EUROBERT = {"num_attention_heads": 12, "num_key_value_heads": 12, "hidden_size": 768, "intermediate_size": 3072, **IDS}
QWEN3 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, **IDS}
# As their config.json on the hub says.
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "eurobert-210m": ("eurobert", {**EUROBERT, "vocab_size": 128_256, "num_hidden_layers": 12}),
    "qwen3-0.6b": ("qwen3", {**QWEN3, "vocab_size": 151_669, "hidden_size": 1024, "num_hidden_layers": 28}),
    "tiny": ("qwen3", {**QWEN3, "head_dim": 4, **TINY}),
}
COLUMNS = ("tokens", "ours_cpu_ms", "transformers_cpu_ms", "ratio", "lowest", "highest", "difference")


def draw(name: str) -> Any:
    """The network as `transformers` draws it."""
    try:
        from transformers import AutoConfig, AutoModel  # noqa: PLC0415 - of the extra `test`, and seconds to import
    except ImportError as error:
        raise CannotMeasure("transformers is not installed: pip install -e '.[test]'") from error
    model_type, settings = NETWORKS[name]
    auto: Any = AutoModel
    torch.manual_seed(0)
    return auto.from_config(AutoConfig.for_model(model_type, max_position_embeddings=LONGEST, **settings)).eval()


def graph_of(theirs: Any, threads: int) -> tuple[Session, EncoderConfig]:
    """The same network as a graph, loaded."""
    described = theirs.config.to_dict()
    family = FAMILIES[described["model_type"]]
    config = family.read_config(described, "mean")
    encoder = build_encoder(config, family.read_state(theirs.state_dict(), described))
    with tempfile.TemporaryDirectory() as folder:
        write_graph(trace(encoder), Path(folder))
        return Session(Path(folder) / GRAPH, threads=threads), config


def compare(theirs: Any, ours: Session, config: EncoderConfig, length: int, rounds: int) -> dict[str, float]:
    """Medians in milliseconds, how many times as long `transformers` takes by round, and the largest difference."""
    ids = np.random.default_rng(length).integers(3, config.vocab_size, (1, length))
    inputs, tensors = graph_inputs(config, ids, np.array([length])), torch.from_numpy(ids)

    def forward() -> Any:
        with torch.inference_mode():
            return theirs(tensors).last_hidden_state.numpy()

    difference = float(np.abs(ours.run(inputs)[LAST_HIDDEN_STATE] - forward()).max())
    ways: dict[str, Callable[[], object]] = {"ours": partial(ours.run, inputs), "transformers": forward}
    found = in_turns({name: partial(processor_seconds, run) for name, run in ways.items()}, rounds)
    ratios = Spread.of([other / own for other, own in zip(found["transformers"], found["ours"], strict=True)])
    milliseconds = {f"{name}_cpu_ms": 1000 * Spread.of(seconds).median for name, seconds in found.items()}
    spread = {"ratio": ratios.median, "lowest": ratios.lowest, "highest": ratios.highest}
    return {**milliseconds, **spread, "difference": difference}


@program
def main() -> None:
    """Measures each length."""
    parser = parser_of(__doc__, takes="three minutes and 5 GB of memory; qwen3-0.6b wants 10 GB")
    parser.add_argument("--network", choices=NETWORKS, default="eurobert-210m", help="shape that is drawn")
    parser.add_argument("--lengths", type=whole, nargs="+", default=[32, 128, 512], help="tokens of a text")
    parser.add_argument("--rounds", type=whole, default=5, help="of every length")
    parser.add_argument("--threads", type=whole, default=1, help="of a run")
    arguments = parser.parse_args()
    if max(arguments.lengths) > LONGEST:
        parser.error(f"--lengths: at most {LONGEST} tokens")
    torch.set_num_threads(arguments.threads)
    theirs = draw(arguments.network)
    ours, config = graph_of(theirs, arguments.threads)
    table = Table("transformers", f"{arguments.network}, one text, fp32", COLUMNS)
    for length in arguments.lengths:
        table.add(tokens=length, **compare(theirs, ours, config, length, arguments.rounds))
    emit("engine transformers", [table], network=arguments.network, rounds=arguments.rounds)
