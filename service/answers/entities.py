"""Labels of tokens as entities: grouped as the token classification pipeline of `transformers` groups them.

Words and groups follow its rules to the letter, odd ones among them, so that a caller who moves here finds the same
entities. Long texts are another matter: their windows are joined before anything is grouped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.inference.backend import Float32Array, Int64Array
from service.requests.schemas import Aggregation, EntityRequest
from service.tokenization.rows import TokenizedInput
from service.tokenization.tokenizer import Tokenizer


class Span(NamedTuple):
    """A token, or a word, as the tokenizer writes it: its best label, its characters in the text, its first token."""

    label: str
    score: float
    text: str
    start: int
    end: int
    place: int


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One text, tokenised with offsets, with the ids of its tokens, [n], and their scores, [n, labels]."""

    item: TokenizedInput
    ids: Int64Array
    scores: Float32Array
    labels: Sequence[str]
    tokenizer: Tokenizer

    def entities(self, options: EntityRequest) -> list[dict[str, Any]]:
        """What the text holds, in its order."""
        ignored, spans = frozenset(options.ignore_labels), list(self._tokens())
        if options.aggregation == "none":
            return [
                {"entity": label, "score": score, "index": place, "word": text, "start": start, "end": end}
                for label, score, text, start, end, place in spans
                if label not in ignored
            ]
        if options.aggregation != "simple":
            spans = [self._word(tokens, options.aggregation) for tokens in _parted(spans, self._begins_word)]
        groups = ((words[0].label.split("-", 1)[-1], words) for words in _parted(spans, _begins_group))
        return [
            {
                "entity_group": label,
                "score": sum(word.score for word in words) / len(words),
                "word": self.tokenizer.join([word.text for word in words]),
                "start": words[0].start,
                "end": words[-1].end,
            }
            for label, words in groups
            if label not in ignored
        ]

    def _tokens(self) -> Iterator[Span]:
        """Every token with its best label, special tokens left out; an unknown one reads as in the text."""
        encoding, text, tokenizer = self.item.encoding, self.item.text or "", self.tokenizer
        assert encoding is not None  # noqa: S101 - texts are tokenised with offsets for this
        columns = (
            self.scores.argmax(axis=1).tolist(),
            self.scores.max(axis=1).tolist(),
            self.ids.tolist(),
            encoding.offsets,
            encoding.special_tokens_mask,
        )
        for place, (label, score, token_id, (start, end), is_special) in enumerate(zip(*columns, strict=True)):
            if not is_special:
                written = text[start:end] if token_id == tokenizer.unknown_id else tokenizer.token(token_id)
                yield Span(self.labels[label], score, written, start, end, place)

    def _begins_word(self, token: Span, _before: Span) -> bool:
        """By the mark on a word's later tokens, where the tokenizer has one, else by a space in front of the token."""
        if self.ids[token.place] == self.tokenizer.unknown_id:
            return True
        if self.tokenizer.marks_pieces:
            return len(token.text) == token.end - token.start
        return token.start == 0 or " " in (self.item.text or "")[token.start - 1 : token.start + 1]

    def _word(self, tokens: Sequence[Span], aggregation: Aggregation) -> Span:
        """One label for all tokens of a word."""
        first, last = tokens[0], tokens[-1]
        chosen = max(tokens, key=lambda token: token.score) if aggregation == "max" else first
        label, score = chosen.label, chosen.score
        if aggregation == "average" and len(tokens) > 1:
            mean = self.scores[first.place : last.place + 1].mean(axis=0).tolist()
            score = max(mean)
            label = self.labels[mean.index(score)]
        text = self.tokenizer.join([token.text for token in tokens])
        return Span(label, score, text, first.start, last.end, first.place)


def _begins_group(word: Span, before: Span) -> bool:
    """Neighbours of one tag are a group; a label that begins with `B-` begins another."""
    return word.label.startswith("B-") or _tag(word.label) != _tag(before.label)


def _tag(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _parted(spans: Iterable[Span], begins: Callable[[Span, Span], bool]) -> Iterator[list[Span]]:
    """The spans in runs."""
    run: list[Span] = []
    for span in spans:
        if run and begins(span, run[-1]):
            yield run
            run = []
        run.append(span)
    if run:
        yield run
