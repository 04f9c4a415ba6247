"""What a server counts, in the text format of Prometheus."""

from collections.abc import Callable, Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from jaxformer.decoding.translate import Hypothesis

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server; told by its requests and by its `Batcher`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "jaxformer_requests",
            "Requests answered; status 499: the client went away before.",
            ("path", "status"),
            registry=registry,
        )
        self._request_seconds = Histogram(
            "jaxformer_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._sentences = Counter(
            "jaxformer_sentences", "Sentences translated.", registry=registry
        )
        self._tokens = Counter(
            "jaxformer_tokens",
            "Pieces in the best translations, end of sentence included.",
            registry=registry,
        )
        self._dropped = Counter(
            "jaxformer_dropped_sentences",
            "Sentences never begun, since nobody waited for them any more.",
            registry=registry,
        )
        self._batch = Histogram(
            "jaxformer_batch_sentences",
            "Sentences in the search, at each of its advances.",
            buckets=_SENTENCES,
            registry=registry,
        )
        self._advance_seconds = Histogram(
            "jaxformer_advance_seconds",
            "Time of an advance of the search, a few steps.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.answered = 0
        self.sentences = 0

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Report what `value` says whenever somebody asks."""
        Gauge(f"jaxformer_{name}", meaning, registry=self._registry).set_function(value)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.answered += status != 499
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def advanced(self, sentences: int, seconds: float) -> None:
        """Count an advance of the search, with so many sentences in it."""
        self._batch.observe(sentences)
        self._advance_seconds.observe(seconds)

    def translated(self, hypotheses: Sequence[Hypothesis]) -> None:
        """Count a translated sentence."""
        self.sentences += 1
        self._sentences.inc()
        self._tokens.inc(hypotheses[0].tokens)

    def dropped(self) -> None:
        """Count a sentence that was not begun."""
        self._dropped.inc()

    def text(self) -> bytes:
        """Everything, as CONTENT_TYPE says."""
        return generate_latest(self._registry)
