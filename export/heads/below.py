"""Layers that compute the same again and again, run once: what comes out of them is kept and handed on.

Without a head of layer l only what follows is different: for the heads of one layer the layers below it are replayed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from export.heads.tokens import TextBatch
from model.encoder import Encoder


class LayersBelow:
    """The outputs of the layers below one, for batches; memory is a hidden state of all their tokens."""

    def __init__(self, encoder: Encoder, layer: int, batches: Sequence[TextBatch]) -> None:
        """Runs the network once on each batch."""
        self._layers = list(encoder.layers)[:layer]
        self._hidden: list[Tensor] = []
        with ExitStack() as hooks, torch.inference_mode():
            if self._layers:
                hooks.callback(self._layers[-1].register_forward_hook(self._keep).remove)
            for batch in batches if self._layers else ():
                encoder.use("sdpa")(batch.input_ids, batch.lengths)

    @contextmanager
    def replayed(self, batch: int) -> Iterator[None]:
        """While this holds, the layers below hand on what they gave for a batch, and compute nothing."""
        if not self._layers:
            yield
            return
        hidden = self._hidden[batch]
        with ExitStack() as stack:
            for module in self._layers:
                stack.enter_context(_replaced(module, lambda *_: (hidden, None)))
            yield

    def _keep(self, module: nn.Module, inputs: object, output: tuple[Tensor, Tensor | None]) -> None:
        del module, inputs
        self._hidden.append(output[0])


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    module.forward = forward  # on this object only, and taken back below
    try:
        yield
    finally:
        del module.forward
