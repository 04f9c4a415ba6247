"""One thread translates; the texts of all requests share its search.

Requests are tokenised in threads of their own, then queued, and get futures. Between
two advances, the thread adds the queued requests to the search in flight, where they
take turns, and drops those whose futures were cancelled. Another thread compiles.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from jaxformer.decoding.forced import joined_links
from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.request_queue import (
    PAIRS,
    PHRASES,
    SMALL_REQUEST,
    TEXTS,
    RequestQueue,
)
from jaxformer.decoding.text_pipeline import Direction, TextResult
from jaxformer.serving.metrics import Metrics
from jaxformer.system.errors import InputError

logger = logging.getLogger(__name__)

STARTING, READY, FAILED, STOPPED = "starting", "ready", "failed", "stopped"
_UNAVAILABLE = {
    STARTING: "the server is starting; try again in a few seconds",
    FAILED: "translating failed; the server is shutting down",
    STOPPED: "the server is shutting down",
}
MAX_ATTENTION_PIECES = 128  # of a text, end included; memory grows with their square
LOG_SECONDS = 5.0  # between two messages about compiling


class Limits(NamedTuple):
    """Limits of requests and of the work in progress."""

    max_request_pieces: int
    max_queue: int  # pieces of all requests that are not answered
    request_timeout: float  # seconds to read a request, and again to answer it
    shutdown_timeout: float  # seconds to finish accepted requests


class TooLargeError(Exception):
    """A request has too many pieces; the message says how many it may have."""


class UnavailableError(Exception):
    """The translator cannot accept or finish a request; the message says why."""


class _Job(NamedTuple):
    """An accepted request."""

    future: Future
    begin: Callable[[Future], None]  # adds it to the search
    texts: int
    programs: int  # that have to be compiled before


class Batcher(threading.Thread):
    """The thread that translates, and the queue before it.

    Another thread compiles the programs, of which `compiled` of `programs` are ready.
    The state is READY once texts can be translated; other requests wait until the
    programs that they need are compiled. If either thread
    fails, it keeps the exception in `error` and calls `on_failure`.
    """

    def __init__(
        self, requests: RequestQueue, limits: Limits, on_failure: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True)
        self.state = STARTING
        self.error: BaseException | None = None
        self._requests, self.limits, self.metrics = requests, limits, Metrics()
        self._of_direction = cache(requests.text.of_direction)
        self._compiles = requests.compile()
        self.compiled, self.programs = next(self._compiles)
        self._on_failure = on_failure
        self._queue: deque[_Job] = deque()
        self._pieces: dict[Future, int] = {}  # of requests that are not answered
        self._begun: dict[Future, int] = {}  # their numbers of texts
        self._change = threading.Condition()  # guards the state, queue and pieces
        self._call_start: float | None = None  # of the translator; None while idle
        self.metrics.pieces.set_function(lambda: sum(self._pieces.copy().values()))
        self.metrics.waiting.set_function(self._waiting_texts)
        self.metrics.in_search.set_function(lambda: requests.load[1])

    def busy_seconds(self) -> float:
        """Return how long the thread has been inside one call of the translator."""
        start = self._call_start
        return 0.0 if start is None else time.monotonic() - start

    def translate(
        self,
        given: Sequence[tuple[str, str, Sequence[str]]],
        direction: Direction | None = None,
    ) -> Future:
        """Queue texts, each with its prefix and phrases; the result has `TextResult`s.

        `direction` None is the one that the server was started for. Tokenises in the
        calling thread. Cancel the future to drop all, begun or not. Raises
        TooLargeError, UnavailableError if there is no room, and InputError.
        """
        self._require_ready()
        pieces, most = self._count(given), self.limits.max_request_pieces
        if pieces > most:
            raise TooLargeError(
                f"the request has {pieces:,} pieces, more than {most:,}"
            )
        text = self._requests.text
        tasks = (text if direction is None else self._of_direction(direction)).tasks
        texts = [tasks(*each, number) for number, each in enumerate(given)]

        def begin(future: Future) -> None:
            ends = partial(self._done, future), partial(self._fail, future)
            self._requests.submit(texts, *ends, request=future)

        has_phrases = any(text.has_phrases for text in texts)
        return self._put(begin, pieces, len(texts), PHRASES if has_phrases else TEXTS)

    def attention(self, source: str, target: str) -> Future:
        """Queue one pair; the result is its attention. Raises as `translate`."""
        return self._pair(self._requests.translator.attention, source, target)

    def links(self, found: Hypothesis) -> Future:
        """Queue a translation; the result has the links of its pieces.

        There are none if a part has more than MAX_ATTENTION_PIECES pieces.
        """
        translator = self._requests.translator
        sides = found.source_pieces, found.pieces
        (parts,) = translator.forcing.pairs(*([side] for side in sides))
        longest = max((len(side) for part in parts for side in part), default=0)
        is_short = longest <= MAX_ATTENTION_PIECES

        def begin(future: Future) -> None:
            maps = translator.attention_of_parts(*sides) if is_short else []
            self._end(future, future.set_result, joined_links(maps))

        return self._put(begin, sum(map(len, sides)), 0, PAIRS)

    def score(self, source: str, target: str) -> Future:
        """Queue one pair; the result is its `PairScore`. Raises as `translate`."""
        score = self._requests.translator.score
        return self._pair(lambda *pair: score(*zip(pair))[0], source, target)

    def _pair(self, compute: Callable, source: str, target: str) -> Future:
        self._require_ready()
        text, most = self._requests.text, MAX_ATTENTION_PIECES
        source, tokenizer = text.tagged(source), text.tokenizer
        (own,), (other,) = tokenizer.encode([source]), tokenizer.encode_target([target])
        if max(len(own), len(other)) > most:
            raise TooLargeError(f"a pair is limited to {most} pieces of each text")
        if (count := len(text.sentences(source))) > 1:
            raise InputError(f"a pair is of one sentence, and the text has {count}")

        def begin(future: Future) -> None:
            self._end(future, future.set_result, compute(source, target))

        return self._put(begin, len(own) + len(other), 0, PAIRS)

    def stop(self, state: str = STOPPED) -> None:
        """End after the current call; all futures raise UnavailableError at once."""
        with self._change:
            self.state = state
            futures = list(self._pieces)
            self._queue.clear()
            self._change.notify()
        for future in futures:
            with suppress(InvalidStateError):  # cancelled, or just done
                future.set_exception(UnavailableError(_UNAVAILABLE[state]))

    def run(self) -> None:
        """Translate until the end; the body of the thread."""
        compiling = threading.Thread(target=self._ending, args=[self._compile])
        compiling.daemon = True
        compiling.start()
        self._ending(self._translate)
        compiling.join()

    def _ending(self, work: Callable[[], None]) -> None:
        """Do a thread's work; if it fails, all requests must fail."""
        try:
            work()
        except BaseException as error:
            logger.error("translating failed", exc_info=error)
            self.error = error
            self.stop(FAILED)
            self._on_failure()

    def _translate(self) -> None:
        while self.state in (STARTING, READY):
            self._begin_waiting()
            if self._begun and self.state == READY:
                self._advance()

    def _waiting_texts(self) -> int:
        return self._requests.load[0] + sum(job.texts for job in list(self._queue))

    def _require_ready(self) -> None:
        if self.state != READY:
            raise UnavailableError(_UNAVAILABLE[self.state])

    def _count(self, given: Sequence[tuple[str, str, Sequence[str]]]) -> int:
        """Count the pieces of all texts, prefixes and phrases, ends included."""
        tokenizer = self._requests.text.tokenizer
        sources = tokenizer.encode([text for text, _, _ in given])
        targets = [each for _, prefix, own in given for each in (prefix, *own) if each]
        lines = sum(text.count("\n") for text, _, _ in given)  # each takes some work
        return sum(map(len, (*sources, *tokenizer.encode_target(targets)))) + lines

    def _put(
        self, begin: Callable[[Future], None], pieces: int, texts: int, programs: int
    ) -> Future:
        future: Future = Future()
        # Large requests leave room for small ones.
        room = self.limits.max_queue // (2 if pieces > SMALL_REQUEST else 1)
        with self._change:
            self._require_ready()
            if sum(self._pieces.values()) + pieces > room:
                raise UnavailableError("too many pieces are waiting; try again")
            self._pieces[future] = pieces
            self._queue.append(_Job(future, begin, texts, programs))
            self._change.notify()
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Future) -> None:
        """Make room for others; if this was cancelled, the thread drops its work."""
        with self._change:
            self._pieces.pop(future, None)

    def _compile(self) -> None:
        start = time.monotonic()
        logged, counted = start, "compiling: %d of %d programs, %.0f s left"
        for done, of in self._compiles:
            now = time.monotonic()
            with self._change:
                self.compiled = done
                needed = PHRASES if self._requests.text.has_glossary else TEXTS
                is_first = self.state == STARTING and done >= needed
                self.state = READY if is_first else self.state
                self._change.notify()
            if self.state not in (STARTING, READY):
                return
            if is_first:
                logger.info("ready after %.1f s; compiling more programs", now - start)
            elif now - logged > LOG_SECONDS:
                logger.info(counted, done, of, (now - start) * (of - done) / done)
                logged = now
        logger.info("compiled %d programs in %.1f s", of, time.monotonic() - start)

    def _begin_waiting(self) -> None:
        """Wait for work, add it to the search, and drop what was cancelled."""
        self._call_start = None
        with self._change:
            self._change.wait_for(
                lambda: (
                    self._begun
                    or self.state not in (STARTING, READY)
                    or any(map(self._has_programs, self._queue))
                )
            )
            jobs = list(filter(self._has_programs, self._queue))
            self._queue = deque(itertools.filterfalse(self._has_programs, self._queue))
        self._call_start = time.monotonic()
        for future in [each for each in self._begun if each.cancelled()]:
            self._requests.cancel(future)
            self.metrics.dropped.inc(self._begun.pop(future))
        for future, begin, texts, _ in jobs:
            if future.cancelled():
                self.metrics.dropped.inc(texts)
                continue
            self._begun[future] = texts
            try:
                begin(future)
            except InputError as error:
                self._fail(future, error)

    def _has_programs(self, job: _Job) -> bool:
        return job.programs <= self.compiled

    def _done(self, future: Future, found: list[TextResult]) -> None:
        self.metrics.sentences.inc(len(found))
        self.metrics.tokens.inc(sum(each.hypotheses[0].tokens for each in found))
        self._end(future, future.set_result, found)

    def _fail(self, future: Future, error: InputError) -> None:
        self._requests.cancel(future)
        self._end(future, future.set_exception, error)

    def _end(self, future: Future, set_value: Callable, value: object) -> None:
        self._begun.pop(future, None)
        with suppress(InvalidStateError):  # stopped, or cancelled
            set_value(value)

    def _advance(self) -> None:
        self._call_start = time.monotonic()
        with self.metrics.advance_seconds.time():
            is_unfinished = self._requests.advance()
        self.metrics.batch.observe(self._requests.load[1])
        if self._begun and not is_unfinished:
            raise RuntimeError(f"{len(self._begun)} requests were left without result")
