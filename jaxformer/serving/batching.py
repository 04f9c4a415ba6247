"""One thread owns the translator; the sentences of all requests share its batches.

A translator is not thread safe. Requests put sentences in a queue and get futures.
Between two advances, the thread adds queued sentences to the search in flight.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from jaxformer.decoding.translate import Hypothesis, Translator
from jaxformer.errors import InputError
from jaxformer.serving.metrics import Metrics

logger = logging.getLogger(__name__)

STARTING, READY, FAILED, STOPPED = "starting", "ready", "failed", "stopped"
_UNAVAILABLE = {
    STARTING: "the model is still being compiled",
    FAILED: "translating failed; the server is shutting down",
    STOPPED: "the server is shutting down",
}
_Begin = Callable[[Future], None]  # the work on a future


class Limits(NamedTuple):
    """Limits of requests and of the work in progress."""

    max_request_bytes: int
    max_sentences: int  # in a request
    max_batch: int  # sentences in the search
    max_queue: int  # sentences in the queue
    request_timeout: float  # seconds to read a request, and again to answer it
    shutdown_timeout: float  # seconds to finish accepted requests


class UnavailableError(Exception):
    """The translator cannot accept or finish a request; the message says why."""


class Batcher(threading.Thread):
    """The thread that translates, and the queue before it.

    `warm_up` holds groups of sentences that are translated before the state is READY,
    so that requests find the programs compiled. If the translator fails, the thread
    keeps the exception in `error`, calls `on_failure` and ends.
    """

    def __init__(
        self,
        translator: Translator,
        limits: Limits,
        warm_up: Sequence[Sequence[str]],
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self.state = STARTING
        self.error: BaseException | None = None
        self._translator, self.limits, self.metrics = translator, limits, Metrics()
        self._warm_up, self._on_failure = warm_up, on_failure
        self._queue: deque[tuple[Future, _Begin]] = deque()
        self._begun: set[Future] = set()  # in the search
        self._change = threading.Condition()  # guards the state and the queue
        self._call_start: float | None = None  # of the translator; None while idle
        self.metrics.waiting.set_function(lambda: len(self._queue))
        self.metrics.in_search.set_function(lambda: len(self._begun))

    def busy_seconds(self) -> float:
        """Return how long the thread has been inside one call of the translator."""
        start = self._call_start
        return 0.0 if start is None else time.monotonic() - start

    def translate(self, pairs: Iterable[tuple[str, str]]) -> list[Future]:
        """Queue sentences, each with its prefix; each future is a list of hypotheses.

        Cancel a future to remove its sentence from the queue. Raises UnavailableError
        if there is no room for all; a future may raise that or InputError.
        """
        return self._put([partial(self._submit, *pair) for pair in pairs])

    def attention(self, source: str, target: str) -> list[Future]:
        """Queue one pair; the one future is its attention. Raises as `translate`."""
        attend = partial(self._translator.attention, source, target)
        return self._put([lambda job: self._end(job, job.set_result, attend())])

    def stop(self, state: str = STOPPED) -> None:
        """End after the current call; all futures raise UnavailableError at once."""
        with self._change:
            self.state = state
            futures = [*(future for future, _ in self._queue), *self._begun.copy()]
            self._queue.clear()
            self._change.notify()
        for future in futures:
            with suppress(InvalidStateError):  # cancelled, or just done
                future.set_exception(UnavailableError(_UNAVAILABLE[state]))

    def run(self) -> None:
        """Compile, then translate until the end; the body of the thread."""
        try:
            self._compile()
            while self.state == READY:
                self._begin_waiting()
                if self._begun and self.state == READY:
                    self._advance()
        except BaseException as error:  # all requests must fail
            logger.error("translating failed", exc_info=error)
            self.error = error
            self.stop(FAILED)
            self._on_failure()

    def _put(self, begins: Sequence[_Begin]) -> list[Future]:
        jobs = [(Future(), begin) for begin in begins]
        with self._change:
            if self.state != READY:
                raise UnavailableError(_UNAVAILABLE[self.state])
            if len(self._queue) + len(jobs) > self.limits.max_queue:
                raise UnavailableError("too many sentences are waiting; try again")
            self._queue.extend(jobs)
            self._change.notify()
        return [future for future, _ in jobs]

    def _compile(self) -> None:
        """Translate the warm-up, so that the search grows through all its sizes.

        It advances after the 1st, 2nd, 4th, 8th, ... sentence of each group.
        """
        start = time.monotonic()
        for sentences in self._warm_up:
            found, submitted = [], 0
            for sentence in sentences:
                with suppress(InputError):  # too long for this model
                    self._translator.submit(sentence, found.append)
                    submitted += 1
                if submitted & (submitted - 1) == 0:
                    self._translator.advance()
                while submitted - len(found) >= self.limits.max_batch:
                    self._translator.advance()
            while self._translator.advance():
                pass
            if found:
                self._translator.attention(sentences[0], found[0][0].text)
        logger.info("warmed up in %.1f s", time.monotonic() - start)
        with self._change:
            if self.state == STARTING:
                self.state = READY

    def _begin_waiting(self) -> None:
        """Wait for work, and add it to the search."""
        self._call_start = None
        with self._change:
            self._change.wait_for(
                lambda: self._queue or self._begun or self.state != READY
            )
        while len(self._begun) < self.limits.max_batch:
            with self._change:
                if not self._queue:
                    break
                future, begin = self._queue.popleft()
                if not future.set_running_or_notify_cancel():
                    self.metrics.dropped.inc()
                    continue
                self._begun.add(future)
            self._call_start = time.monotonic()
            try:
                begin(future)
            except InputError as error:
                self._end(future, future.set_exception, error)

    def _submit(self, sentence: str, prefix: str, future: Future) -> None:
        def done(hypotheses: Sequence[Hypothesis]) -> None:
            self.metrics.sentences.inc()
            self.metrics.tokens.inc(hypotheses[0].tokens)
            self._end(future, future.set_result, hypotheses)

        self._translator.submit(sentence, done, prefix=prefix)

    def _end(self, future: Future, set_value: Callable, value: Any) -> None:
        self._begun.discard(future)
        with suppress(InvalidStateError):  # stopped
            set_value(value)

    def _advance(self) -> None:
        self.metrics.batch.observe(len(self._begun))
        self._call_start = time.monotonic()
        with self.metrics.advance_seconds.time():
            is_unfinished = self._translator.advance()
        if self._begun and not is_unfinished:
            raise RuntimeError(f"{len(self._begun)} sentences were left without result")
