"""The models that one process serves: how a request finds its model, and the parts that each has of its own.

Each has a queue and workers of its own, so a flood on one fills no other's queue, and runs on the cores that the others
leave (`service.batching.cores`). Each may hold its part of the bytes of bodies and answers. Changed on the event
loop.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from model.artifact import Artifact, ArtifactError, Manifest, identity, read_manifest
from service.batching.cores import CoreShare, CoreShares
from service.context import ByteBudget, Share
from service.errors import ModelNotFound, NotReady, Overloaded
from service.machine import trim_heap, usable_cores
from service.observability import metrics as names
from service.observability.metrics import Metrics, ModelMetrics
from service.observability.stages import BatchRecord
from service.runner import Runner
from service.settings import Settings, own_name

logger = logging.getLogger(__name__)


class ServedModel:
    """One of the models.

    Attributes:
        alias: the name that it was given; empty for none.
        name: what requests choose it by, and its label in metrics: the alias, or the artifact's own name; the
            directory's if its manifest cannot be read.
        loaded: the runner; None until it is there.
        failure: why it cannot answer, for the log and for operators; empty while it loads, and once it is there.
        metrics: its own series, once it is loaded.
        bodies: bytes of its requests' bodies: its share, so that the bodies of other models have room.
        cores: its share; None while there never was another model.
        in_use: requests that it is answering; `unused` is set while there are none.
        last_used: `time.monotonic()` when it was loaded, or a request last chose it.
        num_bytes: of its files.
    """

    metrics: ModelMetrics

    def __init__(self, directory: Path, alias: str, settings: Settings, metrics: Metrics) -> None:
        self.directory = directory
        self.alias = alias
        self.name = alias or own_name(directory) or directory.name
        self.loaded: Runner | None = None
        self.failure = ""
        self.bodies = ByteBudget(settings.max_held_body_bytes, "request bodies")
        self.answers = ByteBudget(settings.max_held_answer_bytes, "answers")
        self.cores: CoreShare | None = None
        self.unused = asyncio.Event()
        self.unused.set()
        self.in_use = 0
        self.last_used = time.monotonic()
        self.num_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        self._queue_tokens = settings.max_queue_tokens
        self._all_metrics = metrics

    def runner(self) -> Runner:
        """What answers; `NotReady` while there is nothing that could."""
        if self.loaded is None:
            message = "the model could not be loaded; the log says why" if self.failure else "the model is loading"
            raise NotReady(f"{message}; try again soon")
        return self.loaded

    def is_alive(self) -> bool:
        """Whether it is loaded and its workers answer."""
        return self.loaded is not None and self.loaded.is_alive()

    def observe_batch(self, batch: BatchRecord) -> None:
        """Counts one run of the model; called on the workers' threads."""
        self.metrics.observe_batch(batch)

    def start(self, runner: Runner, load_seconds: float = 0.0) -> Mapping[str, str]:
        """Answers requests from now on; returns what the log says of the model."""
        self.loaded, self.failure = runner, ""
        self.name = runner.name = self.alias or runner.manifest.model
        self.metrics = self._all_metrics.of_model(self.name)
        manifest, runtime = runner.manifest, runner.runtime
        labels = {
            "source": manifest.source.id,
            "revision": manifest.source.revision or "",
            "precision": manifest.precision,
            "weights_sha256": manifest.source.sha256,
            "identity": identity(manifest),
            "provider": runtime.provider,
            "engine": runtime.engine,
        }
        self.metrics.set_model(labels)
        self.metrics.watch(
            {
                names.WORKERS: lambda: runtime.workers,
                names.INTRA_OP_THREADS: lambda: runtime.intra_op_threads,
                names.QUEUE_LIMIT_TOKENS: lambda: self._queue_tokens,
                names.MODEL_LOAD: lambda: load_seconds,
                names.QUEUE_TEXTS: self._reader(lambda runner: runner.batcher.queued_texts),
                names.QUEUE_TOKENS: self._reader(lambda runner: runner.batcher.queued_tokens),
                names.QUEUE_OLDEST_AGE: self._reader(lambda runner: runner.batcher.oldest_age),
                names.TOKENIZER_QUEUE_CHARACTERS: self._reader(lambda runner: runner.tokenizer.waiting_characters),
                names.EXPLAIN_QUEUE_VECTORS: self._reader(lambda runner: runner.queued_explain_vectors),
                names.MODEL_READY: lambda: float(self.is_alive()),
            }
        )
        return {"model": self.name, **labels}

    def _reader(self, read: Callable[[Runner], float]) -> Callable[[], float]:
        """A gauge of the runner that does not hold it: a gauge is garbage that is collected rarely, long after."""
        return lambda: math.nan if (runner := self.loaded) is None else read(runner)

    def replaces(self, other: "ServedModel") -> bool:
        """Whether the other one could not be loaded and is the same model, which is called as its directory then."""
        is_same = not other.alias and other.directory.resolve() == self.directory.resolve()
        return bool(other.failure) and (is_same or other.name == self.name)

    def hold(self, size: int) -> Share:
        """Holds a request's body; `HeldTooMuch` if its bodies hold as much as they may."""
        share = Share(self.bodies)
        share.take(size)
        return share

    def enter(self) -> None:
        """A request begins that it answers."""
        self.in_use += 1
        self.unused.clear()
        self.last_used = time.monotonic()

    def leave(self) -> None:
        """Such a request is over."""
        self.in_use -= 1
        if not self.in_use:
            self.unused.set()


Load = Callable[[ServedModel], Awaitable[None]]


class Models:
    """All models of the process, by name.

    Attributes:
        load: loads a model and has it answer; a failure is noted in the model. Set by the server.
        changing: held while a model comes or goes, and while the start's models are loaded.
        are_several: whether there is, or ever was, more than one. Then no name stands for another model.
    """

    load: Load

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._served = [ServedModel(path, alias, settings, metrics) for alias, path in settings.named_models]
        self._by_name: dict[str, ServedModel] = {}
        self.changing = asyncio.Lock()
        self._cores = CoreShares(usable_cores() // settings.intra_op_threads)
        self.are_several = len(self._served) > 1
        self.update()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    def update(self) -> None:
        """Reads the models' names again, and shares the bytes out; after any change.

        A model answers to its alias and to its artifact's own name, unless that is another's.
        """
        self._by_name = {model.name: model for model in self._served}
        for model in self._served:
            if runner := model.loaded:
                self._by_name.setdefault(runner.manifest.model, model)
                if self.are_several and model.cores is None:
                    model.cores = runner.batcher.cores = self._cores.join()  # from the next run on
            model.bodies.limit = self._settings.max_held_body_bytes // len(self)
            model.answers.limit = self._settings.max_held_answer_bytes // len(self)

    def start(self, model: ServedModel, runner: Runner, load_seconds: float = 0.0) -> Mapping[str, str]:
        """Has a model answer from now on; returns what the log says of it.

        It replaces one that could not be loaded: of its name, or of its directory if that one was given no name.

        Raises:
            ValueError: another one has its name.
        """
        self._check_name(model, runner.manifest)
        labels = model.start(runner, load_seconds)
        if model not in self._served:
            place = next((place for place, other in enumerate(self) if model.replaces(other)), len(self))
            for failed in self._served[place : place + 1]:
                if failed.name != model.name:
                    self._metrics.forget_model(failed.name)
            self._served[place : place + 1] = [model]
            self.are_several = True
        self.update()
        return labels

    def _check_name(self, model: ServedModel, manifest: Manifest) -> None:
        name = model.alias or manifest.model
        if any(other is not model and other.loaded is not None and other.name == name for other in self):
            raise ValueError(
                f'another model is called {name}: give this one a name of its own, NAME=MODEL or "name" of the request'
            )

    async def add(self, directory: Path, alias: str) -> str:
        """Loads one more model and has it answer, while the others do; returns why it cannot, empty if it can."""
        async with self.changing:
            model = ServedModel(directory, alias, self._settings, self._metrics)
            model.answers.on_full = self._served[0].answers.on_full
            try:
                self._check_name(model, await asyncio.to_thread(read_manifest, directory))
                if failure := await self._make_room(model):
                    return failure
            except (ArtifactError, OSError, ValueError) as error:
                return str(error)
            await self.load(model)
            return model.failure

    async def _make_room(self, wanted: ServedModel) -> str:
        """Unloads the least recently used models until one more fits; returns why it cannot, and unloads none then."""
        most = self._settings.max_model_bytes or math.inf
        default = self._by_name.get(self._settings.default, self._served[0])
        if wanted.num_bytes + default.num_bytes > most:
            return f"its files have {wanted.num_bytes} bytes; --max-model-bytes leaves {most - default.num_bytes}"
        others = sorted((model for model in self if model is not default), key=lambda model: model.last_used)

        def is_short() -> bool:
            return wanted.num_bytes + sum(model.num_bytes for model in self) > most

        if is_short():
            await asyncio.to_thread(Artifact.open, wanted.directory)  # none goes for one that cannot come
        while is_short():
            model = others.pop(0)
            logger.info("unloading a model that was not used for longest", extra={"fields": {"model": model.name}})
            await self._take_out(model, self._settings.shutdown_timeout)
        return ""

    async def remove(self, model: ServedModel, timeout: float) -> None:
        """Has a model answer what it was asked within a timeout, and nothing more; then frees it.

        Raises:
            ModelNotFound: another call has removed it, or it is the last one.
        """
        async with self.changing:
            if model not in self._served or len(self) == 1:
                raise ModelNotFound("no such model any more, or it is the last one", param="model")
            logger.info("removing a model", extra={"fields": {"model": model.name}})
            await self._take_out(model, timeout)

    async def _take_out(self, model: ServedModel, timeout: float) -> None:
        self._served.remove(model)
        self.update()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await model.unused.wait()
        if model.loaded:
            await asyncio.to_thread(model.loaded.close, timeout)
        if model.cores is not None:
            self._cores.leave(model.cores)
        self._metrics.forget_model(model.name)
        model.loaded = None
        await asyncio.to_thread(trim_heap)  # a tokenizer may have had hundreds of megabytes

    def choose(self, name: str | None) -> ServedModel:
        """The model that a request names, as `find`, or the default.

        One that is alone answers to any name: clients send placeholders.
        """
        name = name or self._settings.default
        return self.find(name) if self.are_several and name else self._served[0]

    def find(self, name: str) -> ServedModel:
        """The model of a name, even if it is the only one.

        Raises:
            ModelNotFound: there is none.
            NotReady: no model is loaded, so none has its name yet.
        """
        self.check_loaded()
        if name in self._by_name:
            return self._by_name[name]
        served, verb = ", ".join(model.name for model in self), "is" if len(self) == 1 else "are"
        raise ModelNotFound(f"no such model; {served} {verb} served here", param="model")

    def early_refusal(self, tokens: int, others: int, refused: int) -> Overloaded | None:
        """Why every model's queue would refuse a request, before its body is read: see `Batcher.early_refusal`.

        Raises:
            NotReady: no model is loaded.
        """
        refusals = [model.loaded.early_refusal(tokens, others, refused) for model in self if model.loaded]
        if not refusals:
            self.check_loaded()
        return None if None in refusals else refusals[-1]

    def check_loaded(self) -> None:
        """Raises `NotReady` unless some model is loaded."""
        if not any(model.loaded for model in self):
            self._served[0].runner()

    def most_busy(self) -> int:
        """Workers that can be busy at once: several models share the cores, and each has one at least."""
        workers = [runner.runtime.workers for model in self if (runner := model.loaded)]
        return min(sum(workers), max(self._cores.cores, len(workers))) if self.are_several else sum(workers)

    def is_alive(self) -> bool:
        """Whether some model's workers answer: a failed one must not make the others unready."""
        return any(model.is_alive() for model in self)

    def are_all_alive(self) -> bool:
        """Whether all loaded models answer, and there is one: a run that hangs is cured by a new process alone."""
        return self.is_alive() and all(model.is_alive() for model in self if model.loaded)
