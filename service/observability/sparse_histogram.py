"""A histogram of many label combinations, most of which stay at 0, that costs a scrape only what was observed.

Turning samples into text is what a scrape spends its time on. The lines of a combination that nothing was observed for
never change: the library writes them once, at the start, and a scrape copies them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
Encode = Callable[[Collector], bytes]

_END = b"# EOF\n"  # of an OpenMetrics page


class SparseHistogram(Collector):
    """Observes as the library's histogram does; not thread-safe across its own methods, made for the event loop.

    Args:
        name: of the metric.
        text: its description.
        label_names: names of its labels.
        combinations: label values that can occur; they are there from the start with 0.
        buckets: upper bounds.
    """

    def __init__(
        self, name: str, text: str, label_names: Labels, combinations: Iterable[Labels], buckets: Sequence[float]
    ) -> None:
        self._make: Callable[[], Histogram] = lambda: Histogram(name, text, label_names, buckets=buckets, registry=None)
        self._live = self._make()
        self._children: dict[Labels, Histogram] = {}
        self._idle = dict.fromkeys(combinations)
        self._idle_lines: dict[Labels, bytes] = {}

    def observe(self, labels: Labels, value: float, exemplar: dict[str, str] | None = None) -> None:
        """Counts one value of one combination."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._live.labels(*labels)
            self._idle.pop(labels, None)
            self._idle_lines.pop(labels, None)
        child.observe(value, exemplar)

    def collect(self) -> Iterator[Metric]:
        """The whole family, as any collector gives it; `write` is the cheap way."""
        for live, idle in zip(self._live.collect(), self._idle_histogram().collect(), strict=True):
            live.samples += idle.samples
            yield live

    def write(self, encode: Encode) -> bytes:
        """The whole family as text."""
        if len(self._idle_lines) != len(self._idle):
            self._idle_lines = self._write_idle(encode)
        return encode(self._live).removesuffix(_END) + b"".join(self._idle_lines.values())

    def _write_idle(self, encode: Encode) -> dict[Labels, bytes]:
        """Lines by combination. Both text formats write a bucket of 0 without an exemplar in the same way."""
        lines = [line for line in encode(self._idle_histogram()).splitlines(keepends=True) if line[:1] != b"#"]
        size = len(lines) // len(self._idle) if self._idle else 0
        return {labels: b"".join(lines[start * size : (start + 1) * size]) for start, labels in enumerate(self._idle)}

    def _idle_histogram(self) -> Histogram:
        idle = self._make()
        for labels in self._idle:
            idle.labels(*labels)
        return idle
