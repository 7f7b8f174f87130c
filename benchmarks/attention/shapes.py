"""Which shapes multi-head attention can have, built, run and exported: any head count, free head sizes, none at all."""

import tempfile
from pathlib import Path

import onnx_ir
import torch

from benchmarks.lib.report import Table
from export.graph import trace
from export.precision import TOLERANCES
from export.verify import verify
from model.attention import MultiHeadAttention
from model.config import EncoderConfig
from model.encoder import Encoder

HIDDEN = 64
EXPORTED: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((1, 1), 64, 64),
    ((8, 8), 8, 8),
    ((7, 7), 9, 9),
    ((64, 64), 1, 1),
    ((4, 4), 16, 3),
    ((4, 4), 3, 40),
    ((4, 1, 0, 64), 5, 7),
)


def network(num_heads: tuple[int, ...], d_k: int, d_v: int, **settings: object) -> Encoder:
    """A small encoder with weights that make attention far from uniform."""
    config = EncoderConfig.from_dict(
        {
            "vocab_size": 50,
            "hidden_size": HIDDEN,
            "num_heads": list(num_heads),
            "d_k": d_k,
            "d_v": d_v,
            "intermediate_size": 64,
            "max_positions": 24,
            **settings,
        }
    )
    torch.manual_seed(0)
    encoder = Encoder(config)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return encoder.eval().requires_grad_(False)


def count_parameters(heads: int, d_k: int, d_v: int) -> tuple[int, int]:
    """Parameters of one attention layer, counted and by the formula D h (2 d_k + 2 d_v) + h (2 d_k + d_v) + D."""
    attention = MultiHeadAttention(hidden_size=HIDDEN, num_heads=heads, d_k=d_k, d_v=d_v)
    counted = sum(parameter.numel() for parameter in attention.parameters())
    return counted, HIDDEN * heads * (2 * d_k + 2 * d_v) + heads * (2 * d_k + d_v) + HIDDEN


def every_head_count() -> Table:
    """Every number of heads from 1 to D, whether it divides D or not: built and run, by two implementations."""
    title = f"Every head count from 1 to D = {HIDDEN}, d_k = d_v = max(1, D // h)"
    columns = ("head_counts", "ran", "largest_difference", "formula_wrong", "parameters_where_h_divides")
    table = Table("every_head_count", title, columns)
    ids, lengths = torch.arange(40).reshape(2, 20), torch.tensor([20, 7])
    differences, wrong, parameters = [], 0, set()
    for heads in range(1, HIDDEN + 1):
        size = max(1, HIDDEN // heads)
        encoder = network((heads,), size, size)
        found, expected = (encoder.use(name)(ids, lengths).last_hidden_state for name in ("sdpa", "eager"))
        differences.append(float((found - expected).abs().max()))
        counted, formula = count_parameters(heads, size, size)
        wrong += counted != formula
        parameters |= {counted} if HIDDEN % heads == 0 else set()
    table.add(
        head_counts=HIDDEN,
        ran=len(differences),
        largest_difference=max(differences),
        formula_wrong=wrong,
        parameters_where_h_divides=", ".join(map(str, sorted(parameters))),
    )
    return table


def exports() -> Table:
    """Shapes exported and verified against the float64 encoder as every artifact is."""
    columns = ("heads_a_layer", "d_k", "d_v", "parameters_first_layer", "fused", "embedding", "attention")
    table = Table("exports", "Exported and verified: fused nodes, largest differences", columns)
    for num_heads, d_k, d_v in EXPORTED:
        fused, parity = export(network(num_heads, d_k, d_v))
        table.add(
            heads_a_layer=" ".join(map(str, num_heads)),
            d_k=d_k,
            d_v=d_v,
            parameters_first_layer=count_parameters(num_heads[0], d_k, d_v)[0],
            fused=fused,
            embedding=parity["pooled"],
            attention=parity["attentions"],
        )
    return table


def export(encoder: Encoder) -> tuple[int, dict[str, float]]:
    """Fused nodes and parity figures of a network's graph; raises where it does not verify."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_ir.save(trace(encoder), path)
        fused, parity = verify(path, encoder, tolerance=TOLERANCES["fp32"])
    return sum(fused.values()), parity
