"""One thread owns the translator; the sentences of all requests share its batches.

A translator is not thread safe, and all device work is done where it lives. Requests
hand in sentences and get futures; the thread puts what waits into the search in flight
between its steps, so that a sentence that comes late joins those that came before.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from jaxformer.decoding.translate import Hypothesis, Translator
from jaxformer.errors import InputError

logger = logging.getLogger(__name__)

STARTING, READY, FAILED, STOPPED = "starting", "ready", "failed", "stopped"


class Observer(Protocol):
    """Who is told what the thread does."""

    def advanced(self, sentences: int, seconds: float) -> None:
        """Some steps were taken, with so many sentences in the search."""

    def translated(self, hypotheses: Sequence[Hypothesis]) -> None:
        """A sentence was translated."""

    def dropped(self) -> None:
        """A sentence was not begun, since nobody waits for it any more."""


class QueueFullError(Exception):
    """Too much is waiting already."""

    def __init__(self) -> None:
        super().__init__("too many sentences are waiting; try again")


class UnavailableError(Exception):
    """There is nobody to translate: not yet, or no more. Says why."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to do in the thread; `begin` starts it and sets `future` in time."""

    future: Future
    begin: Callable[[Future], None]


class Batcher:
    """The thread that translates, and the queue before it.

    At most `max_batch` sentences are in the search at a time and `max_queue` wait.
    `warm_up` are groups of sentences to translate first, so that what has to be
    compiled is compiled before anybody asks. `on_failure` is called, in the thread, if
    it fails.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        max_batch: int,
        max_queue: int,
        warm_up: Sequence[Sequence[str]],
        observer: Observer,
        on_failure: Callable[[], None],
    ) -> None:
        self.error: BaseException | None = None  # what the thread failed of
        self._translator = translator
        self._max_batch, self._max_queue = max_batch, max_queue
        self._warm_up = warm_up
        self._observer, self._on_failure = observer, on_failure
        self._state = STARTING
        self._jobs: deque[_Job] = deque()
        self._begun: set[Future] = set()  # in the search; the thread's own
        self._change = threading.Condition()  # guards the state and the queue
        self._abandoned = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(
            target=self._run, name="translator", daemon=True
        )

    # For everybody --------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of STARTING, READY, FAILED and STOPPED."""
        return self._state

    @property
    def waiting(self) -> int:
        """How much waits to be begun."""
        return len(self._jobs)

    @property
    def in_search(self) -> int:
        """How many sentences are in the search."""
        return len(self._begun)

    def busy_seconds(self) -> float:
        """How long the thread has been inside one call of the translator."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End the thread when nothing is left to do; False if it takes longer."""
        with self._change:
            if self._state in (STARTING, READY):
                self._state = STOPPED
            self._change.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Let all that wait for an answer have an UnavailableError now."""
        with self._change:
            self._abandoned = True
            left = [*(job.future for job in self._jobs), *self._begun.copy()]
            self._jobs.clear()
            self._change.notify()
        for future in left:
            _fail(future, UnavailableError(_SHUTTING_DOWN))

    def translate(
        self, sentences: Sequence[str], prefixes: Sequence[str]
    ) -> list[Future]:
        """Queue all the sentences or none; a future is a list of hypotheses.

        A future that is cancelled before its sentence is begun spares the work. Raises
        QueueFullError and UnavailableError; a future may have InputError and the
        latter.
        """
        return self._put(
            [
                _Job(Future(), lambda future, s=s, p=p: self._submit(future, s, p))
                for s, p in zip(sentences, prefixes, strict=True)
            ]
        )

    def attention(self, source: str, target: str) -> Future:
        """Queue the attention of a pair; errors are those of `translate`."""

        def begin(future: Future) -> None:
            attention = self._translator.attention(source, target)
            with suppress(InvalidStateError):
                future.set_result(attention)

        return self._put([_Job(Future(), begin)])[0]

    def _put(self, jobs: list[_Job]) -> list[Future]:
        with self._change:
            if self._abandoned or self._state != READY:
                raise UnavailableError(_WHY_NOT.get(self._state, _SHUTTING_DOWN))
            if len(self._jobs) + len(jobs) > self._max_queue:
                raise QueueFullError
            self._jobs.extend(jobs)
            self._change.notify()
        return [job.future for job in jobs]

    # The thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._compile()
            with self._change:
                if self._state == STARTING:
                    self._state = READY
            while self._begin_what_waits():
                self._advance()
            for future in self._begun:  # those of a request that was abandoned
                _fail(future, UnavailableError(_SHUTTING_DOWN))
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self._fail(error)

    def _compile(self) -> None:
        """Translate the warm-up, each group as if more and more clients came."""
        start = time.monotonic()
        for sentences in self._warm_up:
            found: list[Sequence[Hypothesis]] = []
            begun = 0
            for sentence in sentences:
                with suppress(InputError):  # longer than this model takes
                    self._translator.submit(sentence, found.append)
                    begun += 1
                doubled = begun & (begun - 1) == 0
                while doubled or begun - len(found) >= self._max_batch:
                    self._translator.advance()
                    doubled = False
                    if self._state != STARTING:
                        return
            while self._translator.advance():
                if self._state != STARTING:
                    return
            if found:
                self._translator.attention(sentences[0], found[0][0].text)
        logger.info("warmed up in %.1f s", time.monotonic() - start)

    def _begin_what_waits(self) -> bool:
        """Wait for something to do, and begin it; False if there never will be."""
        with self._change:
            while not self._jobs and not self._begun:
                if self._state == STOPPED or self._abandoned:
                    return False
                self._change.wait()
        while len(self._begun) < self._max_batch:
            with self._change:
                if self._abandoned:
                    return False
                if not self._jobs:
                    break
                job = self._jobs.popleft()
            if job.future.set_running_or_notify_cancel():
                self._begin(job)
            else:
                self._observer.dropped()
        return True

    def _begin(self, job: _Job) -> None:
        self._busy_since = time.monotonic()
        try:
            job.begin(job.future)
        except InputError as error:
            _fail(job.future, error)
        except BaseException as error:
            _fail(job.future, UnavailableError(_failure(error)))
            raise
        finally:
            self._busy_since = None

    def _submit(self, future: Future, sentence: str, prefix: str) -> None:
        def done(hypotheses: list[Hypothesis]) -> None:
            self._begun.discard(future)
            self._observer.translated(hypotheses)
            with suppress(InvalidStateError):  # it was abandoned
                future.set_result(hypotheses)

        self._begun.add(future)
        try:
            self._translator.submit(sentence, done, prefix=prefix)
        except BaseException:
            self._begun.discard(future)
            raise

    def _advance(self) -> None:
        """Take some steps of the search, if there is anything in it."""
        if not self._begun:
            return
        sentences, start = len(self._begun), time.monotonic()
        self._busy_since = start
        try:
            more = self._translator.advance()
        finally:
            self._busy_since = None
        self._observer.advanced(sentences, time.monotonic() - start)
        if not more and self._begun:
            raise RuntimeError(
                f"the search is over, and {len(self._begun)} sentences have no answer"
            )

    def _fail(self, error: BaseException) -> None:
        logger.error("translating failed", exc_info=error)
        with self._change:
            self.error, self._state = error, FAILED
            left = [*(job.future for job in self._jobs), *self._begun]
            self._jobs.clear()
            self._begun.clear()
        for future in left:
            _fail(future, UnavailableError(_failure(error)))
        self._on_failure()


_SHUTTING_DOWN = "the server is shutting down"
_WHY_NOT = {
    STARTING: "the model is still being compiled",
    FAILED: "translating failed, and the server is shutting down",
}


def _failure(error: BaseException) -> str:
    return f"translating failed ({type(error).__name__})"


def _fail(future: Future, error: Exception) -> None:
    """Give a future an error, unless it is done already or nobody waits for it."""
    with suppress(InvalidStateError):
        future.set_exception(error)
