"""How well documents fit a query, by whatever the artifact is.

A cross-encoder scores each pair; of an embedder it is the cosine, of a multi-vector model MaxSim of the two texts'
token vectors. All texts of a request run together, as in `service.operations.encode`. It knows no HTTP.
"""

from dataclasses import dataclass
from typing import Any

from model.manifest import Manifest
from service.answers.pair_blocks import add_blocks
from service.answers.scores import best, similarities
from service.context import RequestContext
from service.errors import TooLarge
from service.inference.backend import Float32Array
from service.operations.encode import EncodeResult, run, run_prepared, timed
from service.requests.scoring import Scoring, reads_pairs, texts_to_compare
from service.services import Services
from service.tokenization.inputs import InputNames, Inputs, refuse_empty, refuse_long_texts
from service.tokenization.tokenized import TokenizedInput


@dataclass(frozen=True, slots=True)
class Scored:
    """What came of it.

    Attributes:
        model: its name.
        scores: [N], one a document, in their order.
        tokens: that were read.
        items: what became of each text or pair.
        attention: of each pair, where it was asked for.
        encoded: sizes of what was computed.
    """

    model: str
    scores: Float32Array
    tokens: int
    items: list[dict[str, Any]]
    attention: list[dict[str, Any]] | None
    encoded: EncodeResult

    def best(self, most: int | None) -> list[int]:
        """Places of the best scores, best first; no more than `most`."""
        return best(self.scores, most)


async def score(services: Services, context: RequestContext, wanted: Scoring) -> Scored:
    """Scores documents, one a document, in their order.

    Raises:
        WrongTask: the artifact gives no score of a pair.
        ServiceError: whatever keeps it from being answered.
    """
    settings, manifest = services.settings, services.readiness.runner().manifest
    if len(wanted.documents) > settings.max_texts:
        raise TooLarge(
            f"{wanted.names.listed}: {len(wanted.documents)} documents, at most {settings.max_texts} a request are "
            "taken",
            param=wanted.names.listed,
        )
    for texts, names in ((wanted.each_query_once(), wanted.query_names), (wanted.documents, wanted.names)):
        refuse_long_texts(Inputs(texts=texts), settings.max_text_characters, names=names)
    if reads_pairs(wanted, manifest):
        return await _score_pairs(services, context, wanted, manifest)
    return await _compare_vectors(services, context, wanted, manifest)


async def _score_pairs(services: Services, context: RequestContext, wanted: Scoring, manifest: Manifest) -> Scored:
    most = wanted.most_tokens_of_pair
    encoded = await run(services, context, wanted.pair_request(), names=wanted.names, most_tokens=most)
    answer = encoded.answer
    attention = add_blocks(answer.get("attention"))
    scores: Float32Array = answer["scores"][:, 0]
    return Scored(manifest.model, scores, answer["usage"]["tokens"], answer["items"], attention, encoded)


async def _compare_vectors(services: Services, context: RequestContext, wanted: Scoring, manifest: Manifest) -> Scored:
    """Scores by vectors: each query and each document is read once."""
    with timed(services.metrics, "tokenize"):
        queries, documents = await _tokenize(services, context, wanted, manifest)
    names = InputNames(wanted.names.listed, singles=(wanted.query_name,))
    encoded = await run_prepared(services, context, wanted.vector_request(), queries + documents, names=names)
    answer, vectors = encoded.answer, encoded.answer["embeddings"]
    place_of = {query: place for place, query in enumerate(wanted.each_query_once())}
    places = [place_of[query] for query in wanted.one_each()]
    ids = [queries[place].input_ids for place in places], [item.input_ids for item in documents]
    scores = similarities([vectors[place] for place in places], vectors[len(queries) :], ids, manifest)
    items = answer["items"][len(queries) :]
    return Scored(manifest.model, scores, answer["usage"]["tokens"], items, None, encoded)


async def _tokenize(
    services: Services, context: RequestContext, wanted: Scoring, manifest: Manifest
) -> list[list[TokenizedInput]]:
    """Queries, each once, and documents."""
    runner, deadline = services.readiness.runner(), context.deadline(services.settings.request_timeout)
    tokenized = []
    for part in texts_to_compare(wanted, manifest, runner.tokenizer.num_special_tokens):
        found = await runner.tokenize(
            part.inputs,
            truncate=wanted.truncate,
            names=part.names,
            ids_only=True,
            deadline=deadline,
            most_tokens=part.most_tokens,
        )
        refuse_empty(found, names=part.names)
        tokenized.append(found)
    return tokenized
