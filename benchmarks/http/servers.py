"""Servers that leave something out, to see what the rest costs: `python -m benchmarks.http.servers KIND ...`.

`bare` speaks HTTP by uvicorn alone and answers the same bytes whatever it is asked. `no-model` is the service, with
every setting, but for a model that computes nothing. It takes TEXT_SECONDS for each text, if that is set, and no
processor: with it a machine has as many cores for the model as there are workers.
"""

import os
import sys
import time
from collections.abc import Callable

import numpy as np
import orjson
import uvicorn
from starlette.types import Receive, Scope, Send

from model.artifact import TOKENIZER, Artifact
from service.__main__ import main as serve
from service.inference.backend import Batch, BatchOutput
from service.observability.stages import BatchRecord
from service.runner import Runner, make_batcher, plan_runtime
from service.settings import Settings
from service.tokenization.tokenizer import Tokenizer

TEXT_SECONDS = float(os.environ.get("TEXT_SECONDS", "0"))
VECTOR = np.random.default_rng(0).standard_normal(384).astype(np.float32)  # the default model's size
VECTOR /= np.linalg.norm(VECTOR)


class NoModel:
    """A backend that computes nothing: the same vector for every text, after its time."""

    def run(self, batch: Batch) -> BatchOutput:
        """See `service.inference.backend.Backend`."""
        if TEXT_SECONDS:
            time.sleep(TEXT_SECONDS * len(batch.lengths))
        return BatchOutput(np.tile(VECTOR, (len(batch.lengths), 1)), None, {})

    def close(self) -> None:
        """Holds nothing."""


def load(settings: Settings, on_batch: Callable[[BatchRecord], None]) -> Runner:
    """The engine of `no-model`."""
    artifact, runtime = Artifact.open(settings.model), plan_runtime(settings)
    path, longest = artifact.path(TOKENIZER), artifact.manifest.max_sequence_length
    tokenizer = Tokenizer.load(path, longest, threads=runtime.workers)
    batcher = make_batcher(NoModel(), settings, workers=runtime.workers, on_batch=on_batch)
    batcher.start()
    return Runner(artifact, tokenizer, batcher, runtime)


def serve_bare() -> None:
    """Answers every request alike on POLYHEAD_PORT."""
    body = orjson.dumps({"embeddings": VECTOR[np.newaxis]}, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    port = int(os.environ["POLYHEAD_PORT"])
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="error", access_log=False)


if __name__ == "__main__":
    kind, *flags = sys.argv[1:]
    if kind == "bare":
        serve_bare()
    else:
        sys.exit(serve(flags, load))
