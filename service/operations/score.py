"""How well documents fit a query, by whatever the artifact is; all texts of a request run together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.artifact import Manifest
from service.answers.scores import MatchedText, best, counted, counting, find_matches, hybrid_scores, similarities
from service.context import RequestContext
from service.errors import TooLarge
from service.inference.backend import Float32Array
from service.observability.stages import StageTimer
from service.operations.encode import EncodeResult, offload, run, run_plan
from service.requests.attention import ARRAY_FLOATS
from service.requests.plan import plan_encoding
from service.requests.scoring import ScoredTexts, Scoring, reads_pairs, texts_to_compare
from service.services import Services
from service.tokenization.inputs import InputNames, Inputs, refuse_empty, refuse_long_texts
from service.tokenization.rows import TokenizedInput, offsets_behind

MATCH_BYTES = 512  # of a token with what it found: a dictionary with two texts, and as JSON


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores [N], one a document in their order.

    Attributes:
        encoded: what was read, `attention` of each pair included, if wanted.
        matches: of the documents that are answered, by their place, if wanted.
    """

    scores: Float32Array
    encoded: EncodeResult
    matches: Mapping[int, list[dict[str, Any]]] | None = None

    def beside(self, at: int) -> dict[str, Any]:
        """What a document's entry holds besides its score."""
        beside = {"attention": self.encoded.answer.get("attention"), "matches": self.matches}
        return {name: entries[at] for name, entries in beside.items() if entries is not None}


async def score(services: Services, context: RequestContext, wanted: Scoring) -> Scored:
    """Scores documents, one a document, in their order; WrongTask if the artifact returns no score of a pair."""
    settings, manifest = services.settings, services.runner().manifest
    if len(wanted.documents) > settings.max_texts:
        raise TooLarge.at(
            wanted.names.listed, f"{len(wanted.documents)} documents, at most {settings.max_texts} a request are taken"
        )
    for texts, names in ((wanted.each_query_once(), wanted.query_names), (wanted.documents, wanted.names)):
        refuse_long_texts(Inputs(texts=texts), settings.max_text_characters, names=names)
    if not reads_pairs(wanted, manifest):
        return await _compare_vectors(services, context, wanted, manifest)
    request, most = wanted.pair_request(), wanted.most_tokens_of_pair
    encoded = await run(services, context, request, names=wanted.names, most_tokens=most, adds_blocks=True)
    return Scored(encoded.answer["scores"][:, 0], encoded)


async def _compare_vectors(services: Services, context: RequestContext, wanted: Scoring, manifest: Manifest) -> Scored:
    """Scores by vectors: each query and each document is read once."""
    tokenizer = services.runner().tokenizer
    parts = texts_to_compare(wanted, manifest, tokenizer.num_special_tokens)
    with StageTimer(services.model.metrics, "tokenize"):
        queries, documents = [await _tokenize(services, context, wanted, part) for part in parts]
    names = InputNames(wanted.names.listed, singles=(wanted.query_name,))
    place_of = {query: place for place, query in enumerate(wanted.each_query_once())}
    places = [place_of[query] for query in wanted.one_each()]
    lengths = [len(queries[place].input_ids) for place in places]
    match_bytes = _match_bytes(wanted, lengths, services.settings.max_attention_bytes)
    plan = plan_encoding(wanted.vector_request(manifest), Inputs(texts=()), manifest)
    encoded = await run_plan(services, context, plan, queries + documents, names=names, beside_bytes=match_bytes)
    answer = encoded.answer
    vectors: Any = answer.get("embeddings")

    def compare() -> Float32Array:
        if wanted.weights is not None:
            return hybrid_scores(answer, places, len(queries), wanted.weights, manifest)
        sides = vectors[: len(queries)], vectors[len(queries) :]
        if manifest.task == "multi_vector":
            found = list(counting(sides[0], queries, "query", manifest))
            sides = found, counting(sides[1], documents, "document", manifest)
        return similarities([sides[0][place] for place in places], sides[1], manifest)

    scores = await offload(compare, max(encoded.sizes.built_from, ARRAY_FLOATS * len(documents)))
    if not wanted.matches:
        return Scored(scores, encoded)

    def matched(part: int, at: int) -> MatchedText:
        item, role = (queries, documents)[part][at], ("query", "document")[part]
        offsets = offsets_behind(item, parts[part].prompt_length)
        counts = counted(item.input_ids, role, manifest)
        return MatchedText(vectors[part * len(queries) + at], tokenizer.tokens(item), offsets, counts)

    def find() -> dict[int, list[dict[str, Any]]]:
        asked = {place: matched(0, place) for place in set(places)}
        return {at: find_matches(asked[places[at]], matched(1, at)) for at in best(scores, wanted.most)}

    return Scored(scores, encoded, await offload(find, match_bytes))


def _match_bytes(wanted: Scoring, lengths: Sequence[int], most: int) -> int:
    """What the matches of the documents that are answered take; `lengths` are of each document's query."""
    if not wanted.matches:
        return 0
    matches = sum(sorted(lengths, reverse=True)[: wanted.most])
    if (size := matches * MATCH_BYTES) > most:
        raise TooLarge.at(
            "matches",
            f"{matches} tokens with what they found take {size} bytes, at most {most} are allowed; send fewer "
            "documents, or ask for the best ones (top_n)",
        )
    return size


async def _tokenize(
    services: Services, context: RequestContext, wanted: Scoring, part: ScoredTexts
) -> list[TokenizedInput]:
    """Queries, each once, or documents."""
    runner, deadline = services.runner(), context.deadline(services.settings.request_timeout)
    found = await runner.tokenize(
        part.inputs,
        truncate=wanted.truncate,
        names=part.names,
        ids_only=not wanted.matches,
        deadline=deadline,
        most_tokens=part.role.most_tokens,
    )
    refuse_empty(found, names=part.names)
    return part.role.expand(found)
