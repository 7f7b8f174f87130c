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
from typing import Any, Self

from model.artifact import Artifact
from service.answers.comparison import Explained
from service.answers.encoded import Encoded
from service.answers.network import ExplainedScore
from service.answers.scores import Ranked, labelled, rank
from service.batching.batcher import Batcher
from service.batching.decompositions import DecompositionQueue
from service.inference.backend import Float32Array
from service.local.call_loop import CallLoop
from service.local.encode_call import EncodeCall, Progress, Queueing
from service.local.explain_call import explain_logits, explain_pooling, explain_through_network, require_task
from service.local.score_call import ScoreCall
from service.requests.calls import (
    read_call,
    read_classify_call,
    read_explain_call,
    read_rerank_call,
    read_score_call,
)
from service.requests.explain_plan import plan_explaining
from service.requests.network_plan import plan_network
from service.requests.plan import plan_encoding
from service.requests.schemas import EncodeRequest
from service.runner import Runner
from service.runtime import Runtime
from service.tokenization.inputs import INPUTS, PAIRS, Inputs
from service.tokenization.tokenizer import Tokenizer

CLOSE_SECONDS = 30.0

Texts = str | Iterable[str]


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
        atexit.register(self.close, 0.0)  # where nobody closed it, as after Ctrl-C: see `BatchExecutor.close`

    def encode(
        self,
        inputs: str | Iterable[str] | Iterable[int] | Iterable[Sequence[int]] | None = None,
        *,
        pairs: Iterable[Sequence[str]] | Iterable[Sequence[Sequence[int]]] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Encoded:
        """Encodes texts, token ids, or pairs of either.

        Args:
            inputs: a text, texts, token ids, or lists of token ids; any number. Lists, tuples, generators and arrays
                of NumPy's hold them, here and in the options.
            pairs: in place of inputs, for models that read two texts together: two texts, or two lists of token ids,
                each.
            progress: called now and then with how many more inputs are done, on another thread.
            **options: `POST /encode`'s: normalize, truncate, dimensions, output, attention, head_mask, prompt_name,
                prompt, raw_scores, pair_truncation, long_texts, spans, and encoding_format for vectors in fewer bits.
        """
        return self._encode(*read_call(inputs, pairs, options), progress)

    def explain(self, a: str, b: str, **options: Any) -> Explained:
        """Says why two texts are similar: what each pair of their tokens adds to it.

        Args:
            a: a text.
            b: another.
            **options: `POST /explain`'s: through, similarity, dimensions, truncate, prompt_name, prompt, head_mask.
        """
        request = read_explain_call(a, b, options)
        if request.through == "network":
            require_task(self.manifest, "embedding")
            network = plan_network(request, self.manifest)
            return self._calls.result(lambda: explain_through_network(self, network))
        plan = plan_explaining(request, self.manifest)
        return self._calls.result(lambda: explain_pooling(self, plan))

    def explain_score(self, a: str, b: str | None = None, **options: Any) -> ExplainedScore:
        """Says what each input token adds to a classifier's logits, through every layer.

        Args:
            a: a text, or the first of a pair.
            b: the second of the pair.
            **options: truncate.
        """
        require_task(self.manifest, "classification")
        plan = plan_network(read_explain_call(a, b, {**options, "through": "network"}), self.manifest)
        return self._calls.result(lambda: explain_logits(self, plan))

    def score(
        self, queries: Texts, documents: Texts, *, progress: Progress | None = None, **options: Any
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
        **options: Any,
    ) -> list[Ranked]:
        """Documents in the order of their scores, best first.

        Args:
            query: what they are compared with.
            documents: any number of texts.
            top_n: only the best so many.
            progress: as of `encode`.
            **options: those of `score`; and `attention`, of a cross-encoder, as of `POST /rerank`.
        """
        scoring, most = read_rerank_call(query, documents, {**options, "top_n": top_n})
        scores, attention = self._calls.result(ScoreCall(self._queueing, scoring, progress).run)
        return rank(scores, scoring.documents, attention, most)

    def classify(
        self,
        inputs: Texts | None = None,
        *,
        pairs: Iterable[Sequence[str]] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        """A classifier's `{"score", "label"}` of every label, best first, for each input.

        Args:
            inputs: a text, or any number of texts.
            pairs: in place of inputs, two texts each.
            progress: as of `encode`.
            **options: raw_scores, truncate and the others of `encode`.
        """
        encoded = self._encode(*read_classify_call(inputs, pairs, options, self.manifest), progress)
        return labelled(encoded.scores, encoded.labels)

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

    def _encode(self, request: EncodeRequest, given: Inputs, progress: Progress | None) -> Encoded:
        plan = plan_encoding(request, given, self.manifest)
        call = EncodeCall(self._queueing, plan, PAIRS if given.is_paired else INPUTS, progress)
        return self._calls.result(call.run)
