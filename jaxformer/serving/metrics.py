"""The server's metrics, in the text format of Prometheus."""

from functools import partial

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, each an object of prometheus_client."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        counter, gauge, histogram = (
            partial(kind, namespace="jaxformer", registry=self.registry)
            for kind in (Counter, Gauge, Histogram)
        )
        seconds = partial(histogram, buckets=_SECONDS)
        self.requests = counter(
            "requests", "Requests; 499: the client disconnected.", ("path", "status")
        )
        self.request_seconds = seconds(
            "request_seconds", "Time from the head to the end of the answer.", ("path",)
        )
        self.sentences = counter("sentences", "Sentences translated.")
        self.tokens = counter("tokens", "Tokens of the best translations, with EOS.")
        self.dropped = counter("dropped_sentences", "Sentences of cancelled requests.")
        self.pieces = gauge("request_pieces", "Pieces of requests without an answer.")
        self.waiting = gauge("queue_sentences", "Sentences in the queue.")
        self.in_search = gauge("search_sentences", "Sentences in the search.")
        self.batch = histogram(
            "batch_sentences", "Sentences in an advance.", buckets=_SENTENCES
        )
        self.advance_seconds = seconds(
            "advance_seconds", "Time of an advance of the search, a few steps."
        )
