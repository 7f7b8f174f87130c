"""The encoder in float64, which a graph is verified against, and whether there is memory for that.

A whole copy in float64 takes twice the weights' bytes, 4.8 GB of a network of 600 million parameters. Each layer of a
large one is widened when it runs and released afterwards, and of the token embeddings only the rows that are looked up.

Beside the network itself, verifying a large one takes (docs/models.md has what was measured):

    2 weights          what ONNX Runtime loads and lays out anew
    32 H S^2           attention weights of all H heads of two rows of S tokens: float64, and twice float32
    1 GB               programs and the rest
"""

import copy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.errors import VerificationError
from model.encoder import Embeddings, Encoder
from model.tasks import Encoded

LARGE = 1 << 30  # bytes of weights; smaller networks are copied, since widening a layer for every batch takes time
# Every layer's weights in float64 take 8 B a score and head: 0.3 GB for twelve layers of twelve heads at 512 tokens,
# 77 GB at 8,192. Only up to this many tokens a row are the weights of every layer compared.
LONGEST_OF_EVERY_LAYER = 512
WEIGHT_COPIES = 2
SCORE_BYTES = 32
REST = 10**9
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def float64_reference(encoder: Encoder) -> Encoder:
    """An encoder that computes the same in float64, on weights of its own or, of a large one, on the given one's."""
    if sum(parameter.nbytes for parameter in encoder.parameters()) < LARGE:
        return copy.deepcopy(encoder).double()
    return widened_by_layer(encoder)


def widened_by_layer(encoder: Encoder) -> Encoder:
    """An encoder in float64 whose layers are widened when they are reached."""
    with torch.device("meta"):
        made = Encoder(encoder.config)
    made.embeddings = _widened_embeddings(encoder)
    made.positions = widen(encoder.positions)
    made.layer_signals = encoder.layer_signals and widen(encoder.layer_signals)
    made.layers = WidenedLayers(encoder.layers)
    made.final_norm = widen(encoder.final_norm)
    made.task_layers = widen(encoder.task_layers)
    if encoder.config.task == "sparse":
        made.task_layers = WidenedTable(made.task_layers)
    return made.eval()


class WidenedLayers(nn.ModuleList):
    """Layers of which each is widened to float64 when it is asked for, and belongs to whoever asked."""

    def __iter__(self) -> Iterator[Any]:
        """One after the other."""
        return map(widen, self.children())

    def __getitem__(self, index: Any) -> Any:
        """One by its number."""
        return widen(super().__getitem__(index))


class WidenedTable(nn.Module):
    """A task's layers in float64 that get the token embeddings in float64 too, as a sparse task's need them."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, encoded: Encoded) -> Any:
        """As the layers' own."""
        return self.layers(encoded._replace(token_embeddings=encoded.token_embeddings.double()))


class WidenedRows(nn.Module):
    """Token embeddings whose rows are widened behind the look-up."""

    def __init__(self, narrow: nn.Embedding) -> None:
        super().__init__()
        self.narrow = narrow

    @property
    def weight(self) -> Tensor:
        """The table itself, in float32."""
        return self.narrow.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [T] -> float64 [T, D]."""
        rows: Tensor = self.narrow(input_ids)
        return rows.double()


def widen(module: nn.Module) -> Any:
    """A copy in float64."""
    return copy.deepcopy(module).double()


def _widened_embeddings(encoder: Encoder) -> Embeddings:
    """The embeddings in float64 without the table of tokens, which is looked up in as it is."""
    embeddings = encoder.embeddings
    made = copy.deepcopy(embeddings, {id(embeddings.token): None}).double()
    made.token = WidenedRows(embeddings.token)  # type: ignore[assignment]  # looked up as an nn.Embedding is
    return made


def require_memory(encoder: Encoder, available: int | None) -> None:
    """Refuses a float32 network that cannot be verified in the bytes available, None where the system does not say.

    Raises:
        VerificationError: the message names both numbers.
    """
    weights = sum(parameter.nbytes for parameter in encoder.parameters())
    heads, longest = sum(encoder.config.num_heads), encoder.config.max_positions
    needed = needed_bytes(weights, heads, longest)
    if weights >= LARGE and available is not None and needed > available:
        raise VerificationError(
            f"verifying this network takes about {needed / 1e9:.1f} GB of memory more, and {available / 1e9:.1f} GB "
            "are free: export it on a larger machine; the artifact itself is served in far less"
        )


def needed_bytes(weights: int, num_heads: int, longest: int) -> int:
    """Bytes that an export needs besides the network of `weights` bytes, for texts of at most `longest` tokens."""
    return WEIGHT_COPIES * weights + SCORE_BYTES * num_heads * min(longest, LONGEST_OF_EVERY_LAYER) ** 2 + REST


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Free memory as Linux counts it, at most what the container has left; None if unknown.

    Files that were read count as used in a container, and go where memory is wanted.
    """
    found: list[int] = []
    with suppress(OSError):
        lines = meminfo.read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(KeyError, OSError, ValueError):  # without a limit memory.max says "max"
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        found.append(limit - used + int(stat["inactive_file"]))
    return min(found, default=None)
