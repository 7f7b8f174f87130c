"""One call that scores any number of documents, by pairs or by vectors, as `service.operations.score` does."""

from typing import Any

from service.answers.pair_blocks import add_blocks
from service.answers.scores import similarities
from service.inference.backend import Float32Array
from service.local.encode_call import EncodeCall, Progress, Queueing
from service.requests.plan import plan_encoding
from service.requests.scoring import ScoredTexts, Scoring, reads_pairs, texts_to_compare
from service.tokenization.inputs import Inputs

Scores = tuple[Float32Array, list[dict[str, Any]] | None]
"""Of each document: its score, and the attention across its pair where that was asked for."""


class ScoreCall:
    """One call; `progress` is called with how many more documents are done."""

    def __init__(self, queueing: Queueing, scoring: Scoring, progress: Progress | None) -> None:
        self._queueing = queueing
        self._manifest = queueing.runner.manifest
        self._scoring = scoring
        self._progress = progress

    async def run(self) -> Scores:
        """Scores all documents.

        Raises:
            WrongTask: the model gives no score of two texts.
            ServiceError: whatever keeps one from being scored.
        """
        return await (self._pairs() if reads_pairs(self._scoring, self._manifest) else self._vectors())

    async def _pairs(self) -> Scores:
        scoring = self._scoring
        request = scoring.pair_request()
        plan = plan_encoding(request, Inputs(text_pairs=request.pairs), self._manifest)
        most = scoring.most_tokens_of_pair
        call = EncodeCall(self._queueing, plan, scoring.names, self._progress, most_tokens=most)
        encoded = await call.run()
        return encoded.scores[:, 0], add_blocks(encoded.attention)

    async def _vectors(self) -> Scores:
        scoring, added = self._scoring, self._queueing.runner.tokenizer.num_special_tokens
        queries, documents = texts_to_compare(scoring, self._manifest, added)
        calls = self._call(queries, None), self._call(documents, self._progress)
        of_queries, of_documents = [await call.run() for call in calls]
        place_of = {query: place for place, query in enumerate(scoring.each_query_once())}
        places = [place_of[query] for query in scoring.one_each()]
        ids = [calls[0].input_ids[place] for place in places] if calls[0].input_ids else [], calls[1].input_ids
        rows = [of_queries.values[place] for place in places]
        return similarities(rows, of_documents.values, ids, self._manifest), None

    def _call(self, texts: ScoredTexts, progress: Progress | None) -> EncodeCall:
        plan = plan_encoding(self._scoring.vector_request(), texts.inputs, self._manifest)
        keeps_ids = self._manifest.task == "multi_vector"
        return EncodeCall(
            self._queueing, plan, texts.names, progress, most_tokens=texts.most_tokens, keeps_ids=keeps_ids
        )
