"""Which method finds the input tokens that carry a similarity or a logit? Each against leaving tokens out.

For both texts of each pair a method scores the tokens that are not special; a cross-encoder reads both texts at once.
`agreement`: Spearman with what is lost when the token is left out. `drop`: what is lost without the best-scored token,
or without the best third. `left with half`: what is left with the best-scored half alone. Intervals are 95 %, by
bootstrap over pairs.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.lib.command import CannotMeasure, parser_of, program, share, whole
from benchmarks.lib.report import Table, emit
from benchmarks.peers.peers import XPLAINSIM, start_worker
from benchmarks.peers.workers import Task
from export.checkpoint import Checkpoint, read_checkpoint
from export.heads.corpus import read_pairs
from export.pruning.driver import prune
from export.sources import find_folder
from model.analysis.arrays import Float64Array
from model.analysis.contributions import pooled_parts, token_shares
from model.analysis.reductions import saliency
from model.decomposition.decompose import decompose
from model.encoder import Encoder, EncoderOutput

FIGURES = ("agreement", "drop of 1", "drop of a third", "left with half")
LEAST, MOST = 5, 30  # tokens of a text, special ones included; of a cross-encoder's pair twice as many
RESAMPLES = 2000

Scores = NDArray[np.float64]
Given = Mapping[str, Sequence[Sequence[Scores]]]

STEPS = 20  # of the path of integrated Jacobians
PAD = 0
POOLING = "pooled final vectors"


def run(encoder: Encoder, ids: list[int], *, shows_heads: bool = False) -> EncoderOutput:
    """One text; with the heads' weights and value norms if they will be shown."""
    layers = torch.full((encoder.config.num_layers,), shows_heads)
    lengths, types = torch.tensor([len(ids)]), token_types(encoder, ids)
    output: EncoderOutput = encoder(torch.tensor([ids]), lengths, token_type_ids=types, norm_layers=layers)
    return output


def token_types(encoder: Encoder, ids: list[int]) -> Tensor | None:
    """Which text each token of a text or pair is of, int64 [1, n]: behind the first separator it is the second."""
    if not encoder.config.type_vocab_size:
        return None
    second = ids.index(ids[-1]) + 1
    return torch.tensor([[int(place >= second) for place in range(len(ids))]])


def text_places(ids: list[int]) -> list[int]:
    """Places of the tokens that are not special: neither the first token nor a separator, as the last is one."""
    return [place for place, token in enumerate(ids) if token not in {ids[0], ids[-1]}]


@torch.no_grad()
def vector(encoder: Encoder, ids: list[int]) -> Tensor:
    """A text's embedding [D], of length 1; or logits."""
    output = run(encoder, ids).task_output[0]
    return nn.functional.normalize(output, dim=0) if encoder.config.task == "embedding" else output


@torch.no_grad()
def network(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Parts followed through the network, the biases in a slot of their own."""
    found = decompose(encoder, torch.tensor([ids]), token_types(encoder, ids))
    return _numpy(found.output @ other)


@torch.no_grad()
def pooling(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Final token vectors, as pooled."""
    hidden = run(encoder, ids).last_hidden_state[0].numpy()
    scores: Float64Array = pooled_parts(hidden, encoder.config.pooling) @ other.numpy()
    return scores


@torch.no_grad()
def rollout(encoder: Encoder, ids: list[int], _other: Tensor) -> Float64Array:
    """Attention rollout (Abnar and Zuidema 2020); it does not know the other text."""
    output = run(encoder, ids)
    layers = [weights[0].numpy() for weights in output.attentions if weights is not None and weights.shape[1]]
    return saliency(layers, token_shares(output.last_hidden_state[0].numpy(), encoder.config.pooling)).astype(float)


@torch.no_grad()
def norms(encoder: Encoder, ids: list[int], _other: Tensor) -> Float64Array:
    """What all heads take from a token: the sum of ||alpha f(x)|| (Kobayashi et al. 2020) over layers and queries."""
    output = run(encoder, ids, shows_heads=True)
    taken = [
        (weights[0] * lengths[0][:, None]).sum(dim=(0, 1))
        for weights, lengths in zip(output.attentions, output.value_norms, strict=True)
        if weights is not None and lengths is not None
    ]
    return _numpy(torch.stack(taken).sum(dim=0))


def gradient_x_input(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """The similarity's gradient at the embedding layer's output, times that output."""
    embedded = _embedded(encoder, ids)
    is_cosine = encoder.config.task == "embedding"
    return _numpy((_gradient(encoder, ids, embedded, other, is_cosine=is_cosine) * embedded).sum(dim=-1))


def integrated_jacobians(encoder: Encoder, ids: list[int], other: Tensor) -> Float64Array:
    """Rows of integrated Jacobians (Moeller et al. 2023, equation 6) summed over the other text.

    The reference is the text with [PAD] instead of every token that is not special. Of one logit they are integrated
    gradients (Sundararajan et al. 2017).
    """
    embedded = _embedded(encoder, ids)
    replaced = set(text_places(ids))
    reference = _embedded(encoder, [PAD if place in replaced else token for place, token in enumerate(ids)], ids)
    shares = (torch.arange(STEPS) + 0.5) / STEPS
    gradients = [
        _gradient(encoder, ids, reference + share * (embedded - reference), other, is_cosine=False) for share in shares
    ]
    return _numpy((torch.stack(gradients).mean(dim=0) * (embedded - reference)).sum(dim=-1))


def chance(_encoder: Encoder, ids: list[int], _other: Tensor) -> Float64Array:
    """Random numbers."""
    return np.random.default_rng(ids).random(len(ids))


METHODS: Mapping[str, Callable[[Encoder, list[int], Tensor], Float64Array]] = {
    "through the network": network,
    POOLING: pooling,
    "rollout": rollout,
    "norms": norms,
    "gradient x input": gradient_x_input,
    "integrated Jacobians": integrated_jacobians,
    "random": chance,
}


@torch.no_grad()
def _embedded(encoder: Encoder, ids: list[int], typed_as: list[int] | None = None) -> Tensor:
    """What the embedding layer gives, with the token types of this text or of another."""
    types = token_types(encoder, typed_as or ids)
    found: Tensor = encoder.embeddings(torch.tensor(ids), torch.arange(len(ids)), None if types is None else types[0])
    return found


def _gradient(encoder: Encoder, ids: list[int], embedded: Tensor, other: Tensor, *, is_cosine: bool) -> Tensor:
    """Of the text's product with the other's vector by the embedding layer's output, [n, D]."""
    start = embedded.detach().requires_grad_()
    with encoder.embeddings.register_forward_hook(lambda *_: start):
        output = run(encoder, ids).task_output[0]
    product = (nn.functional.normalize(output, dim=0) if is_cosine else output) @ other
    (found,) = torch.autograd.grad(product, start)
    return found


def _numpy(scores: Tensor) -> Float64Array:
    return scores.double().numpy()


@program
def main() -> None:
    """Prints a row a method, then JSON."""
    parser = parser_of(__doc__, "pairs", takes="a minute a dozen pairs")
    parser.add_argument("source", nargs="?", help="checkpoint folder or hub id (default: the default model)")
    parser.add_argument("--prune-heads", type=share, metavar="SHARE", help="remove this share of the heads before")
    parser.add_argument(
        "--xplainsim", type=Path, metavar="DIR", help="beside xplainsim too, half a minute a pair; DIR keeps it"
    )
    parser.add_argument("--count", type=whole, default=80, help="pairs to measure")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    checkpoint = read_checkpoint(find_folder(arguments.source))
    if arguments.prune_heads is not None:
        checkpoint = prune(checkpoint, share=arguments.prune_heads, with_curve=False).checkpoint
    encoder = checkpoint.encoder.use("eager")
    if encoder.config.pooling == "max" or (encoder.config.output_size != 1 and encoder.config.task != "embedding"):
        raise CannotMeasure("an embedder or a cross-encoder of one label is measured, without maximum pooling")
    pairs = _choose(checkpoint, arguments.pairs, arguments.count)
    given = {} if arguments.xplainsim is None else _of_xplainsim(checkpoint, arguments, pairs)
    table = Table("faithfulness", "faithful to leaving tokens out")
    for name, figures in measure(encoder, [pair.rows for pair in pairs], given).items():
        table.add(method=name, **dict(zip(FIGURES, map(_with_interval, figures.T), strict=True)))
    emit("attention faithfulness", [table], pairs=arguments.count, model=checkpoint.name)


def measure(encoder: Encoder, pairs: Sequence[Sequence[list[int]]], given: Given | None = None) -> dict[str, Scores]:
    """The figures of every method, and of leaving out itself; [pairs, figures] each.

    Pairs are the ids of both texts, whose figures are averaged; of a cross-encoder the ids of both together. `given`
    are scores that were computed elsewhere, by method, for each pair and text.
    """
    methods = {
        name: method for name, method in METHODS.items() if name != POOLING or encoder.config.task == "embedding"
    }
    found: list[list[dict[str, Scores]]] = []  # by pair and side
    for place, pair in enumerate(tqdm(pairs, unit="pair", leave=False, disable=None)):
        found.append([])
        for side, (ids, target) in enumerate(_targets(encoder, pair)):
            scores = {name: method(encoder, ids, target) for name, method in methods.items()}
            scores |= {name: by_pair[place][side] for name, by_pair in (given or {}).items()}
            drops = left_out_drops(encoder, ids, target)
            judged = {"leaving out itself": drops, **{name: of[text_places(ids)] for name, of in scores.items()}}
            found[-1].append({name: _figures(encoder, ids, target, of, drops) for name, of in judged.items()})
    names = found[0][0]
    return {name: np.stack([np.mean([side[name] for side in sides], axis=0) for sides in found]) for name in names}


def left_out_drops(encoder: Encoder, ids: list[int], target: torch.Tensor) -> Scores:
    """Similarity, or logit, lost without each token that is not special."""
    whole_text, places = _similarity(encoder, ids, target), range(len(text_places(ids)))
    return np.array([whole_text - _similarity(encoder, _without(ids, [place]), target) for place in places])


def _without(ids: list[int], places: Sequence[int]) -> list[int]:
    """A text without some of its tokens, counted among those that are not special."""
    own = text_places(ids)
    dropped = {own[place] for place in places}
    return [token for place, token in enumerate(ids) if place not in dropped]


def _similarity(encoder: Encoder, ids: list[int], target: torch.Tensor) -> float:
    """The cosine of a text and a vector of length 1, or a logit."""
    return float(vector(encoder, ids) @ target)


def _targets(encoder: Encoder, pair: Sequence[list[int]]) -> list[tuple[list[int], torch.Tensor]]:
    """Each text with the other one's vector; a cross-encoder's pair with what its logit is multiplied by."""
    if encoder.config.task != "embedding":
        return [(ids, torch.ones(1)) for ids in pair]
    return [(ids, vector(encoder, other)) for ids, other in zip(pair, reversed(pair), strict=True)]


def _figures(encoder: Encoder, ids: list[int], target: torch.Tensor, scores: Scores, drops: Scores) -> Scores:
    order = np.argsort(-scores, kind="stable").tolist()
    whole_text, third = _similarity(encoder, ids, target), max(1, round(len(order) / 3))
    agreement = float(spearmanr(scores, drops)[0]) if np.ptp(scores) and np.ptp(drops) else 0.0
    lost = whole_text - _similarity(encoder, _without(ids, order[:third]), target)
    kept = _similarity(encoder, _without(ids, order[(len(order) + 1) // 2 :]), target)
    return np.array([agreement, drops[order[0]], lost, kept])


def _with_interval(values: Scores) -> str:
    means = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


class _Pair(NamedTuple):
    texts: tuple[str, str]
    rows: list[list[int]]  # ids of both texts; of a cross-encoder, of both together


def _choose(checkpoint: Checkpoint, path: Path, count: int) -> list[_Pair]:
    """So many pairs with texts of the lengths that are measured, spread over the file."""
    pairs, encode = read_pairs(path), checkpoint.tokenizer.encode
    is_apart = checkpoint.encoder.config.task == "embedding"
    most = MOST if is_apart else 2 * MOST
    fitting = []
    for left, right in zip(pairs.left, pairs.right, strict=True):
        rows = [encode(left).ids, encode(right).ids] if is_apart else [encode(left, right).ids]
        if all(LEAST <= len(ids) <= most for ids in rows):
            fitting.append(_Pair((left, right), rows))
    if len(fitting) < count:
        raise CannotMeasure(f"{path} has {len(fitting)} pairs of {LEAST} to {most} tokens, {count} are wanted")
    return [fitting[place] for place in np.linspace(0, len(fitting) - 1, count).astype(int)]


def _of_xplainsim(checkpoint: Checkpoint, arguments: argparse.Namespace, pairs: Sequence[_Pair]) -> Given:
    if checkpoint.encoder.config.task != "embedding" or arguments.prune_heads is not None:
        raise CannotMeasure("--xplainsim reads a checkpoint's folder: an embedder, without --prune-heads")
    left, right = zip(*(pair.texts for pair in pairs), strict=True)
    task = Task(str(find_folder(arguments.source).path), 1, left, (), {}, queries=right)
    with start_worker(XPLAINSIM.python(arguments.xplainsim), "xplainsim", task) as peer:
        places = tqdm(range(len(pairs)), desc="xplainsim", leave=False, disable=None)
        found = [peer.vectors([place])[0].astype(np.float64) for place in places]
    halves = zip(found, pairs, strict=True)
    return {"xplainsim": [np.split(scores, [len(pair.rows[0])]) for scores, pair in halves]}
