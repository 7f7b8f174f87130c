"""The encoder as a Python object: texts in, arrays out, without HTTP.

    from polyhead import Engine

    with Engine.load("artifacts/all-MiniLM-L6-v2") as engine:
        encoded = engine.encode(["The cat sat on the mat."], attention={"layers": "all"})
        encoded.embeddings          # float32 [1, 384]
        encoded.attention[0]        # {"tokens": [...], "weights": [one array [heads, queries, keys] a layer], ...}
        engine.rerank("Where did the cat sit?", ["It rained.", "The cat sat on the mat."])  # best first

The same validation, scheduling and arithmetic as `POST /encode`, so the same bits; but no limit on how much one call
may ask for: long lists go through the queue in portions.
"""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload
from weakref import WeakValueDictionary, finalize

from numpy.typing import NDArray

from model.artifact import Manifest
from model.config_parts import Precision
from service.answers.explained import Explained, ExplainedScore
from service.answers.scores import Labelled, Ranked, labelled, rank, zero_shot_labels
from service.errors import Invalid
from service.inference.backend import Float32Array
from service.local.call_loop import CallLoop
from service.local.calls import (
    EncodeCall,
    Encoded,
    Progress,
    explain_texts,
    require_explained_by,
    score_all,
)
from service.local.options import (
    AllEncodeOptions,
    AttentionOptions,
    ClassifyOptions,
    EncodeOptions,
    EntityOptions,
    ExplainOptions,
    ExplainScoreOptions,
    ScoreOptions,
    read_call,
    read_classify_call,
    read_entities_call,
    read_explain_call,
    read_rerank_call,
    read_score_call,
    read_tokenize_call,
    read_zero_shot_call,
)
from service.machine import trim_heap
from service.requests.explain import plan_explaining
from service.requests.plan import plan_encoding
from service.requests.roles import role_of_request
from service.requests.schemas import EncodeRequest
from service.runner import Runner, unhurried
from service.settings import MOST_WORKERS
from service.tokenization.inputs import INPUTS, PAIRS, InputNames, Truncate
from service.tokenization.inputs import Inputs as ReadInputs

CLOSE_SECONDS = 30.0
ENDING = "engine ends"  # the thread that closes a forgotten one

Provider = Literal["cpu", "cuda"]
Origin = tuple[str, int, Provider]
"""What an engine was loaded from, and how."""

Texts = str | Iterable[str]
Inputs = str | Iterable[str] | Iterable[int] | Iterable[Sequence[int]]
Pairs = Iterable[Sequence[str]] | Iterable[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """How the model reads a text, special tokens included.

    Attributes:
        ids: of the vocabulary.
        tokens: the same as text.
        offsets: where each is in the text, [start, end) in characters; (0, 0) for special tokens.
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class Engine:
    """A loaded artifact. Its methods may be called from any number of threads at once; on an event loop call `aencode`.

    It is closed by `close`, at the end of a `with`, and where nothing refers to it any more.

    Each raises a `ServiceError`: options or inputs are not what the model takes (`Invalid`, a `ValueError` too, and
    `TooLarge`), another task's model would be needed (`WrongTask`), it failed (`InferenceFailed`), or the engine is
    closed or of the process that this one was forked from (`NotReady`).

    `pairs` and `progress` are as of `encode` everywhere; several texts are any iterable of them.

    A pickled engine is the folder and how it was loaded: another process loads it once, however often it is sent, and
    keeps it.

    Args:
        runner: runs the model.
        origin: what `load` takes to load the same once more; None for an engine that cannot be pickled.
    """

    def __init__(self, runner: Runner, origin: Origin | None = None) -> None:
        self._runner = runner
        self._origin = origin
        self._calls = CallLoop()
        if origin is not None:
            _opened[origin] = self
        self._forgotten = finalize(self, _end_forgotten, runner, self._calls)

    @classmethod
    def load(
        cls, model: Path | str, *, workers: int = 0, provider: Provider = "cpu", precision: Precision | None = None
    ) -> Self:
        """Verifies, loads and warms up a model. Blocks for as long as that takes.

        Args:
            model: an artifact. A checkpoint's folder or a Hugging Face id is exported first, into the cache of
                `polyhead serve`.
            workers: runs at the same time; 0 is one for each usable core, or one for a GPU.
            provider: where it runs.
            precision: of the export; of an artifact, what it has to be.

        Raises:
            ArtifactError: there is no such artifact, a file is not the one its manifest describes, or the provider or
                the artifact's engine is not there.
            SourceError: a model cannot be had, or its export failed.
            Invalid: `workers` is out of range.
        """
        if not isinstance(workers, Integral) or workers not in range(MOST_WORKERS + 1):
            raise Invalid.at("workers", f"expected a whole number from 0 to {MOST_WORKERS}")
        from polyhead.models import artifact_to_load  # noqa: PLC0415 - it knows the exporter, which few calls need

        directory = artifact_to_load(Path(model), precision)
        settings = unhurried(directory, workers=workers, provider=provider)
        return cls(Runner.load(directory, settings), (str(directory.resolve()), workers, provider))

    @property
    def manifest(self) -> Manifest:
        """What the artifact says of itself."""
        return self._runner.manifest

    @property
    def dimensions(self) -> int:
        """Numbers of a text's vector, or of a token's of a multi-vector model; of other models labels or words."""
        return self.manifest.config.output_size

    @property
    def max_tokens(self) -> int:
        """The longest text that the model reads, special tokens included."""
        return self.manifest.max_sequence_length

    @overload
    def encode(
        self,
        inputs: Inputs | None = None,
        *,
        pairs: Pairs | None = None,
        progress: Progress | None = None,
        attention: None = None,
        **options: Unpack[EncodeOptions],
    ) -> Encoded[NDArray[Any], None]: ...

    @overload
    def encode(
        self,
        inputs: Inputs | None = None,
        *,
        pairs: Pairs | None = None,
        progress: Progress | None = None,
        attention: AttentionOptions,
        **options: Unpack[EncodeOptions],
    ) -> Encoded[NDArray[Any], list[dict[str, Any]]]: ...

    @overload
    def encode(
        self,
        inputs: Inputs | None = None,
        *,
        pairs: Pairs | None = None,
        progress: Progress | None = None,
        **options: Unpack[AllEncodeOptions],
    ) -> Encoded[Any, Any]: ...

    def encode(
        self, inputs: Any = None, *, pairs: Any = None, progress: Progress | None = None, **options: Any
    ) -> Encoded[Any, Any]:
        """Encodes texts, token ids, or pairs of either.

        Args:
            inputs: a text, texts, token ids, or lists of token ids; any number. Lists, tuples, generators, arrays of
                NumPy and pyarrow and columns of pandas and polars hold them. NumPy's numbers are options, too.
            pairs: instead of inputs, for models that read two texts together: two texts, or two lists of token ids,
                each.
            progress: called now and then with how many more inputs are done, on another thread.
            **options: as of `POST /encode`. With `output="tokens"`, `spans`, and of a multi-vector model, the
                embeddings are a list of arrays.
        """
        return self._encode(*read_call(inputs, pairs, options), progress)

    async def aencode(
        self,
        inputs: Inputs | None = None,
        *,
        pairs: Pairs | None = None,
        progress: Progress | None = None,
        **options: Unpack[AllEncodeOptions],
    ) -> Encoded[Any, Any]:
        """As `encode`, on an event loop, which goes on meanwhile. A cancelled call runs no further."""
        request, given = await asyncio.to_thread(read_call, inputs, pairs, options)
        return await self._calls.awaited(self._encode_call(request, given, progress).run)

    def tokenize(self, texts: Texts) -> list[Tokens]:
        """How the model reads texts: their tokens, special ones included, and the ids that `encode` takes instead.

        What the model does not read of a long text is cut off.
        """
        given, name_tokens = read_tokenize_call(texts), self._runner.tokenizer.tokens
        read = self._calls.result(lambda: self._runner.tokenize(given, names=InputNames("texts")))
        return [Tokens(one.input_ids.tolist(), name_tokens(one), list(one.offsets or ())) for one in read]

    def explain(self, a: str, b: str, **options: Unpack[ExplainOptions]) -> Explained:
        """Says why two texts are similar: what each pair of their tokens adds to it; options as of `POST /explain`."""
        require_explained_by("explain", self.manifest)
        plan = plan_explaining(read_explain_call(a, b, options), self.manifest)
        explained: Explained = self._calls.result(lambda: explain_texts(self._runner, plan))
        return explained

    def explain_score(self, a: str, b: str | None = None, **options: Unpack[ExplainScoreOptions]) -> ExplainedScore:
        """Says what each token of a text or pair adds to a classifier's logits, or a token's, through every layer.

        Options are `truncate` and, of a model that labels tokens, `at`: a character of `a` whose token it is.
        """
        require_explained_by("explain_score", self.manifest)
        plan = plan_explaining(read_explain_call(a, b, {**options, "through": "network"}), self.manifest)
        explained: ExplainedScore = self._calls.result(lambda: explain_texts(self._runner, plan))
        return explained

    def score(
        self, queries: Texts, documents: Texts, *, progress: Progress | None = None, **options: Unpack[ScoreOptions]
    ) -> Float32Array:
        """One score a document, float32 [N]: a cross-encoder's own, the cosine of two embeddings, or MaxSim.

        `queries` are a text for all documents, or one for each. Options are raw_scores, truncate, max_tokens_per_doc
        and head_mask, as of `POST /rerank`.
        """
        scoring = read_score_call(queries, documents, options)
        return self._calls.result(lambda: score_all(self._runner, scoring, progress))[0]

    def rerank(
        self,
        query: str,
        documents: Texts,
        *,
        top_n: int | None = None,
        progress: Progress | None = None,
        attention: AttentionOptions | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Ranked]:
        """Documents in the order of their scores, best first; only the best `top_n`, if that is given.

        `attention`, of a cross-encoder, is as of `POST /rerank`; other options are those of `score`.
        """
        scoring = read_rerank_call(query, documents, {**options, "top_n": top_n, "attention": attention})
        scores, maps = self._calls.result(lambda: score_all(self._runner, scoring, progress))
        return rank(scores, scoring.documents, maps, scoring.most)

    def classify(
        self,
        inputs: Texts | None = None,
        *,
        pairs: Iterable[Sequence[str]] | None = None,
        progress: Progress | None = None,
        **options: Unpack[ClassifyOptions],
    ) -> list[list[dict[str, Any]]]:
        """A classifier's `{"score", "label"}` of every label, best first, for each text or pair, as of `encode`."""
        encoded = self._encode(*read_classify_call(inputs, pairs, options, self.manifest), progress)
        return [labelled(scores, encoded.labels) for scores in encoded.scores]

    def entities(
        self,
        inputs: Texts,
        *,
        progress: Progress | None = None,
        truncate: Truncate | None = None,
        **options: Unpack[EntityOptions],
    ) -> list[list[dict[str, Any]]]:
        """What a token classifier finds in each text: label, score, word, and its place in characters.

        `truncate` is as of `encode`; None reads long texts in windows that overlap. Options are `entities` of
        `POST /encode`.
        """
        return self._encode(*read_entities_call(inputs, truncate, options, self.manifest), progress).entities

    def zero_shot(
        self,
        inputs: Texts,
        labels: Texts,
        *,
        hypothesis_template: str | None = None,
        multi_label: bool = False,
        progress: Progress | None = None,
    ) -> list[Labelled]:
        """Labels that the model was not trained for, and their scores, best first, of each text.

        `POST /zero-shot` says what scores are of which model, and what a template is. With `multi_label` labels do not
        exclude each other.
        """
        options = {"hypothesis_template": hypothesis_template, "multi_label": multi_label}
        plan = read_zero_shot_call(inputs, labels, options).plan(self.manifest)
        request, pairs = plan.request, plan.request.pairs
        given = ReadInputs(texts=request.inputs) if pairs is None else ReadInputs(text_pairs=pairs)
        return list(zero_shot_labels(plan, self._encode(request, given, progress, plan.names).values))

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Finishes queued texts and ends the threads; False if that took longer than `timeout` seconds.

        A call not wholly queued yet fails with `NotReady`. In a forked process it does nothing: the threads, and
        whatever they hold, are the parent's.
        """
        self._forgotten.detach()
        if self._origin is not None and _opened.get(self._origin) is self:
            del _opened[self._origin]
        return _end(self._runner, self._calls, timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        """By its folder."""
        if self._origin is None:
            raise TypeError("only an engine that `Engine.load` made can be pickled")
        return _reopened, self._origin

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()

    def _encode(
        self, request: EncodeRequest, given: ReadInputs, progress: Progress | None, names: InputNames | None = None
    ) -> Encoded[Any, Any]:
        return self._calls.result(self._encode_call(request, given, progress, names).run)

    def _encode_call(
        self, request: EncodeRequest, given: ReadInputs, progress: Progress | None, names: InputNames | None = None
    ) -> EncodeCall:
        request, role = role_of_request(request, given, self.manifest, self._runner.tokenizer.num_special_tokens)
        plan = plan_encoding(request, given, self.manifest)
        names = names or (PAIRS if given.is_paired else INPUTS)
        return EncodeCall(self._runner, plan, names, progress, role=role)


def _end(runner: Runner, calls: CallLoop, timeout: float) -> bool:
    """Closes what an engine has, which may be gone itself: a notebook's cell that loads is often run again."""
    if not calls.is_of_this_process:
        return True
    calls.refuse_more()
    done = runner.close(timeout)
    calls.stop()
    trim_heap()  # glibc keeps some of each model's memory: a thousand loads would come to half a gigabyte
    return done


def _end_forgotten(runner: Runner, calls: CallLoop) -> None:
    """Closes it on a thread of its own: garbage is collected on any, which may hold a lock or be one that has to end.

    As Python ends, too, with the main thread over, where none can start; `Batcher.close` says what for.
    """
    if threading.main_thread().is_alive():
        threading.Thread(target=_end, args=(runner, calls, 0.0), name=ENDING).start()
    else:
        _end(runner, calls, 0.0)


_opened: WeakValueDictionary[Origin, Engine] = WeakValueDictionary()
_unpickled: dict[Origin, Engine] = {}  # stay open for the next task that a process pool sends


def _reopened(model: str, workers: int, provider: Provider) -> Engine:
    """The engine that this process has open already, as scikit-learn's clones ask for, else one that is loaded now."""
    engine = _opened.get((model, workers, provider))
    if engine is None or not engine._calls.is_of_this_process:
        engine = _unpickled[model, workers, provider] = Engine.load(model, workers=workers, provider=provider)
    return engine
