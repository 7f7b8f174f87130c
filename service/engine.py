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

import atexit
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from numpy.typing import NDArray

from model.artifact import Artifact
from service.answers.explained import Explained, ExplainedScore
from service.answers.scores import Ranked, labelled, rank
from service.answers.zero_shot import Labelled, zero_shot_labels
from service.batching.batcher import Batcher
from service.batching.decompositions import DecompositionQueue
from service.inference.backend import Float32Array
from service.local.call_loop import CallLoop
from service.local.calls import (
    EncodeCall,
    Encoded,
    Progress,
    Queueing,
    ScoreCall,
    explain_logits,
    explain_texts,
    require_task,
)
from service.local.options import (
    AttentionOptions,
    ClassifyOptions,
    EncodeOptions,
    EntityOptions,
    ExplainOptions,
    ExplainScoreOptions,
    ScoreOptions,
    read_call,
    read_classify_call,
    read_explain_call,
    read_rerank_call,
    read_score_call,
    read_zero_shot_call,
)
from service.requests.explain import plan_explaining
from service.requests.plan import plan_encoding
from service.requests.roles import role_of_request
from service.requests.schemas import EncodeRequest
from service.runner import Runner, Runtime
from service.tokenization.inputs import INPUTS, PAIRS, Truncate
from service.tokenization.inputs import Inputs as ReadInputs
from service.tokenization.tokenizer import Tokenizer

CLOSE_SECONDS = 30.0

Texts = str | Iterable[str]
Inputs = str | Iterable[str] | Iterable[int] | Iterable[Sequence[int]]
Pairs = Iterable[Sequence[str]] | Iterable[Sequence[Sequence[int]]]


class Engine(Runner):
    """A loaded artifact. Its methods may be called from any number of threads at once, but not on an event loop.

    Each raises a `ServiceError`: options or inputs are not what the model takes (`Invalid`, `TooLarge`), another task's
    model would be needed (`WrongTask`), it failed (`InferenceFailed`), or the engine is closed or of the process that
    this one was forked from (`NotReady`).
    """

    def __init__(
        self,
        artifact: Artifact,
        tokenizer: Tokenizer,
        batcher: Batcher,
        runtime: Runtime,
        decompositions: DecompositionQueue | None = None,
    ) -> None:
        super().__init__(artifact, tokenizer, batcher, runtime, decompositions)
        self._calls = CallLoop()
        self._queueing = Queueing.of(self, batcher.max_queue_tokens)
        atexit.register(self.close, 0.0)  # where no one closed it, as after Ctrl-C: see `BatchExecutor.close`

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
        attention: AttentionOptions | None = None,
        output: Literal["pooled", "tokens"] = "pooled",
        spans: Sequence[Sequence[Sequence[int]]] | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Encoded[Any, Any]: ...

    def encode(
        self,
        inputs: Any = None,
        *,
        pairs: Any = None,
        progress: Progress | None = None,
        **options: Any,
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

    def explain(self, a: str, b: str, **options: Unpack[ExplainOptions]) -> Explained:
        """Says why two texts are similar: what each pair of their tokens adds to it.

        Args:
            a: a text.
            b: another.
            **options: those of `POST /explain`.
        """
        request = read_explain_call(a, b, options)
        if request.through == "network":
            require_task(self.manifest, "embedding")
        plan = plan_explaining(request, self.manifest)
        return self._calls.result(lambda: explain_texts(self, plan))

    def explain_score(self, a: str, b: str | None = None, **options: Unpack[ExplainScoreOptions]) -> ExplainedScore:
        """Says what each input token adds to a classifier's logits, through every layer.

        Args:
            a: a text, or the first of a pair.
            b: the second of the pair.
            **options: truncate.
        """
        require_task(self.manifest, "classification")
        plan = plan_explaining(read_explain_call(a, b, {**options, "through": "network"}), self.manifest)
        return self._calls.result(lambda: explain_logits(self, plan))

    def score(
        self, queries: Texts, documents: Texts, *, progress: Progress | None = None, **options: Unpack[ScoreOptions]
    ) -> Float32Array:
        """One score a document, float32 [N]: a cross-encoder's own, the cosine of two embeddings, or MaxSim.

        Args:
            queries: a text for all documents, or one for each.
            documents: any number of texts.
            progress: as of `encode`.
            **options: raw_scores, truncate, max_tokens_per_doc and head_mask, as of `POST /rerank`.
        """
        call = ScoreCall(self._queueing, read_score_call(queries, documents, options), progress)
        return self._calls.result(call.run)[0]

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
        """Documents in the order of their scores, best first.

        Args:
            query: what they are compared with.
            documents: any number of texts.
            top_n: only the best N.
            progress: as of `encode`.
            attention: of a cross-encoder, as of `POST /rerank`.
            **options: those of `score`.
        """
        scoring, most = read_rerank_call(query, documents, {**options, "top_n": top_n, "attention": attention})
        scores, maps = self._calls.result(ScoreCall(self._queueing, scoring, progress).run)
        return rank(scores, scoring.documents, maps, most)

    def classify(
        self,
        inputs: Texts | None = None,
        *,
        pairs: Iterable[Sequence[str]] | None = None,
        progress: Progress | None = None,
        **options: Unpack[ClassifyOptions],
    ) -> list[list[dict[str, Any]]]:
        """A classifier's `{"score", "label"}` of every label, best first, for each input.

        Args:
            inputs: a text, or any number of texts.
            pairs: instead of inputs, two texts each.
            progress: as of `encode`.
            **options: those of `encode` that go with texts.
        """
        encoded = self._encode(*read_classify_call(inputs, pairs, options, self.manifest), progress)
        return labelled(encoded.scores, encoded.labels)

    def entities(
        self,
        inputs: Texts,
        *,
        progress: Progress | None = None,
        truncate: Truncate | None = None,
        **options: Unpack[EntityOptions],
    ) -> list[list[dict[str, Any]]]:
        """What a token classifier finds in each text: label, score, word, and its place in characters.

        Args:
            inputs: a text, or any number of texts.
            progress: as of `encode`.
            truncate: as of `encode`; None reads long texts in windows that overlap.
            **options: `entities` of `POST /encode`.
        """
        asked: dict[str, Any] = {"entities": options}
        asked |= {"long_texts": "windows"} if truncate is None else {"truncate": truncate}
        return self._encode(*read_call(inputs, None, asked), progress).entities

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

        Args:
            inputs: a text, or any number of texts.
            labels: to choose from.
            hypothesis_template: as of `POST /zero-shot`, which says what scores are of which model.
            multi_label: whether labels do not exclude each other.
            progress: as of `encode`.
        """
        options = {"hypothesis_template": hypothesis_template, "multi_label": multi_label}
        plan = read_zero_shot_call(inputs, labels, options).plan(self.manifest)
        request, pairs = plan.request, plan.request.pairs
        given = ReadInputs(texts=request.inputs) if pairs is None else ReadInputs(text_pairs=pairs)
        return list(zero_shot_labels(plan, self._encode(request, given, progress).values))

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """As `Runner.close`; ends the engine's own thread too. A call not wholly queued yet fails with `NotReady`.

        In a forked process it does nothing: the threads, and whatever they hold, are the parent's.
        """
        if not self._calls.is_of_this_process:
            return True
        atexit.unregister(self.close)
        self._calls.refuse_more()
        done = super().close(timeout)
        self._calls.stop()
        return done

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()

    def _encode(self, request: EncodeRequest, given: ReadInputs, progress: Progress | None) -> Encoded[Any, Any]:
        role = role_of_request(request, given, self.manifest, self.tokenizer.num_special_tokens)
        if role is not None:
            request = request.model_copy(update={"prompt_name": role.prompt_name})
        plan = plan_encoding(request, given, self.manifest)
        call = EncodeCall(self._queueing, plan, PAIRS if given.is_paired else INPUTS, progress, role=role)
        return self._calls.result(call.run)
