"""What is said about multi-head attention, and what is true: the tables behind each claim of docs/attention.md.

No model is needed: networks, scores and value streams are randomly initialised, small graphs are exported and run.
Memory is measured in processes of their own, so other work on the machine does not change it. Shapes: n tokens, D
hidden, H heads, K = D / H.
"""

import math
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.attention.memory import memory
from benchmarks.lib.command import parser_of, program, whole
from benchmarks.lib.report import Table, emit
from export.graph import trace
from export.precision import TOLERANCES
from export.verify import verify
from model.attention import MultiHeadAttention
from model.config import EncoderConfig
from model.encoder import Encoder

HIDDEN, HEADS = 512, 8
SATURATED = 0.999
TOKENS = (2, 10, 20, 32)  # of the texts of one head beside many


def draw(tokens: int, *, positive: bool, seed: int) -> Tensor:
    """Queries, keys and values [3, n, D] of a random text: from [0, 1), or normal with weights of variance 1 / D."""
    generator = torch.Generator().manual_seed(seed)
    random, scale = (torch.rand, 1.0) if positive else (torch.randn, 1 / math.sqrt(HIDDEN))
    text = random(tokens, HIDDEN, generator=generator)
    return torch.stack([text @ (random(HIDDEN, HIDDEN, generator=generator) * scale) for _ in range(3)])


def split(drawn: Tensor, heads: int) -> Tensor:
    """[3, n, D] -> [3, H, n, K]."""
    return drawn.view(*drawn.shape[:2], heads, -1).transpose(1, 2)


def scores(drawn: Tensor, heads: int, *, scaled: bool = True) -> Tensor:
    """Q K^T / sqrt(K) of each head, [H, n, n]."""
    query, key = split(drawn, heads)[:2].unbind()
    return query @ key.transpose(1, 2) / (math.sqrt(query.shape[-1]) if scaled else 1)


def attend(drawn: Tensor, heads: int) -> Tensor:
    """Concatenated contexts [n, D]; what an output projection would do to them it does to both sides alike."""
    return (scores(drawn, heads).softmax(dim=-1) @ split(drawn, heads)[2]).transpose(0, 1).flatten(1)


def compare(drawn: Tensor) -> tuple[bool, float, float, float]:
    """One head of size D beside H heads of size D / H, on the same projections.

    Returns whether the two outputs are equal as `torch.allclose` has it; the share of the H heads' rows whose largest
    weight is above 0.999; the mean total variation between the one head's weights and the mean of the H heads' weights;
    and the largest |S_1 - sum_h S_h / sqrt(H)|, S being scores after scaling, by the largest |S_1|.
    """
    exact = drawn.double()
    one, many = scores(exact, 1)[0], scores(exact, HEADS)
    weights = many.softmax(dim=-1)
    return (
        torch.allclose(attend(drawn, 1), attend(drawn, HEADS)),
        float((weights.amax(-1) > SATURATED).double().mean()),
        float((weights.mean(dim=0) - one.softmax(dim=-1)).abs().sum(dim=-1).mean() / 2),
        float((one - many.sum(dim=0) / math.sqrt(HEADS)).abs().max() / one.abs().max()),
    )


def one_head_or_many(runs: int) -> Table:
    """The experiment behind "one head of 512 is the same as 8 of 64", with positive weights and with usual ones."""
    table = Table("one_head_is_not_many", f"One head of {HIDDEN} beside {HEADS} of {HIDDEN // HEADS}")
    for positive, tokens in product((True, False), TOKENS):
        found = [compare(draw(tokens, positive=positive, seed=seed)) for seed in range(runs)]
        close, saturated, from_average, errors = zip(*found, strict=True)
        table.add(
            weights="[0, 1), unscaled" if positive else "normal, 1 / D",
            tokens=tokens,
            runs=runs,
            **{"allclose_%": 100 * sum(close) / runs, "saturated_%": 100 * sum(saturated) / runs},
            identity_error=max(errors),
            from_average=sum(from_average) / runs,
        )
    return table


def scale_not_splitting(tokens: int = 64) -> Table:
    """Spread of scores for several head counts, with the factor 1 / sqrt(K) and without."""
    table = Table("scale", "Splitting does not keep a softmax from saturating; the scale does")
    drawn = draw(tokens, positive=False, seed=0)
    for heads in (1, 2, 4, 8, 16, 64, HIDDEN):
        scaled, unscaled = (float(scores(drawn, heads, scaled=scaled).std()) for scaled in (True, False))
        table.add(heads=heads, d_k=HIDDEN // heads, scaled_sd=scaled, unscaled_sd=unscaled)
    return table


def rank_of_scores(tokens: int = 128) -> Table:
    """Rank of a head's scores, and what is left to a head that is one number.

    Its query looks most at the largest key, or at the smallest where the query is negative.
    """
    table = Table("rank", f"A head's scores have rank d_k at most ({tokens} tokens)")
    exact = draw(tokens, positive=False, seed=0).double()
    query, key, _ = exact
    highest, lowest = key.argmax(dim=0), key.argmin(dim=0)  # [H] of scalar heads
    expected = torch.where(query.T > 0, highest[:, None], lowest[:, None])  # [H, n]
    for heads in (1, 8, 64, HIDDEN):
        found = scores(exact, heads)
        at_an_extreme = float((found.argmax(dim=-1) == expected).double().mean()) if heads == HIDDEN else None
        table.add(
            heads=heads,
            d_k=HIDDEN // heads,
            largest_rank=int(torch.linalg.matrix_rank(found[: min(heads, 8)]).max()),
            rows_at_an_extreme=at_an_extreme,
            map_floats=heads * tokens**2,
        )
    return table


def fewer_heads(hidden: int = 384, tokens: int = 33) -> Table:
    """The most that a layer gains when heads are removed: 1 / (1 - s p), s being attention's share of the products.

    With a feed-forward of 4 D the share is (2 D + n) / (6 D + n).
    """
    table = Table("fewer_heads", f"A layer of D = {hidden}, {tokens} tokens")
    share = (2 * hidden + tokens) / (6 * hidden + tokens)
    for removed in (0.3, 0.4):
        table.add(**{"removed_%": 100 * removed}, times_as_fast_at_most=1 / (1 - share * removed))
    return table


NETWORK_SIZE = 64
EXPORTED = (  # heads of each layer, d_k, d_v
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
    fixed = {"vocab_size": 50, "hidden_size": NETWORK_SIZE, "intermediate_size": 64, "max_positions": 24}
    sizes = {"num_heads": list(num_heads), "d_k": d_k, "d_v": d_v}
    config = EncoderConfig.from_dict({**fixed, **sizes, **settings})
    torch.manual_seed(0)
    encoder = Encoder(config)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return encoder.eval().requires_grad_(False)


def every_head_count() -> Table:
    """Every number of heads from 1 to D, whether it divides D or not: built and run, by two implementations.

    Parameters are counted and compared with the formula D h (2 d_k + 2 d_v) + h (2 d_k + d_v) + D.
    """
    title = f"Every head count from 1 to D = {NETWORK_SIZE}, d_k = d_v = max(1, D // h)"
    table = Table("every_head_count", title)
    ids, lengths = torch.arange(40).reshape(2, 20), torch.tensor([20, 7])
    differences, wrong, parameters = [], 0, set()
    for heads in range(1, NETWORK_SIZE + 1):
        size = max(1, NETWORK_SIZE // heads)
        encoder = network((heads,), size, size)
        found, expected = (encoder.use(name)(ids, lengths).last_hidden_state for name in ("sdpa", "eager"))
        differences.append(float((found - expected).abs().max()))
        attention = MultiHeadAttention(hidden_size=NETWORK_SIZE, num_heads=heads, d_k=size, d_v=size)
        counted = sum(parameter.numel() for parameter in attention.parameters())
        wrong += counted != NETWORK_SIZE * heads * 4 * size + heads * 3 * size + NETWORK_SIZE
        parameters |= {counted} if NETWORK_SIZE % heads == 0 else set()
    table.add(
        head_counts=NETWORK_SIZE,
        ran=len(differences),
        largest_difference=max(differences),
        formula_wrong=wrong,
        parameters_where_h_divides=", ".join(map(str, sorted(parameters))),
    )
    return table


def exports() -> Table:
    """Shapes exported and verified against the float64 encoder as every artifact is."""
    table = Table("exports", "Exported and verified: fused nodes, largest differences")
    for num_heads, d_k, d_v in EXPORTED:
        found = verified_export(network(num_heads, d_k, d_v))
        table.add(heads_a_layer=" ".join(map(str, num_heads)), d_k=d_k, d_v=d_v, **found)
    return table


def verified_export(encoder: Encoder) -> dict[str, float]:
    """Fused nodes and parity figures of a network's graph; raises where it does not verify."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_ir.save(trace(encoder), path)
        fused, parity = verify(path, encoder, tolerance=TOLERANCES["fp32"])
    return {"fused": sum(fused.values()), "embedding": parity["pooled"], "attention": parity["attentions"]}


ALWAYS_OPEN = 40.0  # sigmoid(40) is 1 in float32
SHAPE = ((4, 4, 4), 16, 12)
OWN, MIXED = [[0, 1]] * 3, [[0, 1], [0.5, 0.5], [0.5, 0.5]]
# Each option's neutral setting, and what it has instead where it acts.
OPTIONS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "value residual, fixed": ({"value_residual": OWN}, {"value_residual": MIXED}),
    "value residual, learned": (
        {"value_residual": OWN, "learned_value_residual": True},
        {"value_residual": MIXED, "learned_value_residual": True},
    ),
    "activation on values": ({"value_activation": "identity"}, {"value_activation": "silu"}),
    "output gate": ({"output_gate": True}, {"output_gate": True}),
    "head dropout": ({"head_dropout": 0.3}, {"head_dropout": 0.3}),
}


def with_weights_of(plain: Encoder, settings: Mapping[str, Any], *, is_neutral: bool) -> Encoder:
    """The plain network with an option added; gates open in the neutral one, random in the other."""
    made = network(*SHAPE, **settings)
    made.load_state_dict(plain.state_dict(), strict=False)
    for name, parameter in made.named_parameters():
        if is_neutral and "stream.gate" in name:
            parameter.fill_(ALWAYS_OPEN if name.endswith("bias") else 0.0)
    return made


def identities() -> Table:
    """Largest change of the hidden state at the neutral setting and away from it; exports of the latter."""
    table = Table("value_stream", "Options of the value stream (head dropout acts in training only)")
    plain = network(*SHAPE)
    ids, lengths = torch.arange(40).reshape(2, 20), torch.tensor([20, 7])
    expected = plain(ids, lengths).last_hidden_state
    for name, (neutral_settings, active_settings) in OPTIONS.items():
        neutral = with_weights_of(plain, neutral_settings, is_neutral=True)
        active = with_weights_of(plain, active_settings, is_neutral=False)
        exported = verified_export(active)
        active.train(name == "head dropout")
        changes = [
            float((changed(ids, lengths).last_hidden_state - expected).abs().max()) for changed in (neutral, active)
        ]
        table.add(option=name, neutral_change=changes[0], active_change=changes[1], **exported)
    return table


SECTIONS: Mapping[str, list[Callable[[], Table]]] = {
    "shapes": [every_head_count, exports, fewer_heads],
    "softmax": [scale_not_splitting, rank_of_scores],  # and one head beside many
    "values": [identities],
    "memory": [memory],
}


@program
def main() -> None:
    """Measures the sections asked for and prints their tables."""
    parser = parser_of(__doc__, takes="a few minutes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS], help="sections to measure")
    parser.add_argument("--runs", type=whole, default=100, help="random texts a row of one head beside many")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # the networks are small: threads cost more than they bring
    makers = [make for name in arguments.only for make in SECTIONS[name]]
    if "softmax" in arguments.only:
        makers.append(partial(one_head_or_many, arguments.runs))
    tables = [make() for make in tqdm(makers, desc="measuring", unit="table", leave=False, disable=None)]
    emit("attention claims", tables, runs=arguments.runs)
