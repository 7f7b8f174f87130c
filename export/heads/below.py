"""Runs the layers below one once, and replays their outputs.

Removing a head of layer l changes nothing in the layers before it, so they need not run again for each head.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from export.tokens import TextBatch
from model.encoder import Encoder
from model.head_gates import HeadOutputs

LayerOutput = tuple[Tensor, HeadOutputs]


class LayersBelow:
    """The outputs of the layers below one, for batches; memory is a hidden state of all their tokens."""

    def __init__(self, encoder: Encoder, layer: int, batches: Sequence[TextBatch]) -> None:
        """Runs the network once on each batch."""
        self._layers = list(encoder.layers)[:layer]
        self._outputs: list[LayerOutput] = []
        with ExitStack() as hooks, torch.inference_mode():
            if self._layers:
                hooks.callback(self._layers[-1].register_forward_hook(self._keep).remove)
            for batch in batches if self._layers else ():
                encoder.use("sdpa")(batch.input_ids, batch.lengths)

    @contextmanager
    def replayed(self, batch: int) -> Iterator[None]:
        """While this holds, the layers below return their kept outputs of a batch."""
        if not self._layers:
            yield
            return
        output = self._outputs[batch]
        with ExitStack() as stack:
            for module in self._layers:
                stack.enter_context(_replaced(module, lambda *_: output))
            yield

    def _keep(self, module: nn.Module, inputs: object, output: LayerOutput) -> None:
        del module, inputs
        self._outputs.append(output)


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., LayerOutput]) -> Iterator[None]:
    module.forward = forward  # on this object only, and taken back below
    try:
        yield
    finally:
        del module.forward
