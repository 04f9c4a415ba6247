"""Requests that share the programs of a translator, each compiled ahead of its use.

The texts of all requests are parts in three engines, which take turns, so that small
requests do not wait for large ones:

- small requests have one share of the time
- texts with phrases have one share
- large requests have half a share
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from jaxformer.decoding.ctranslate2_search import CTranslate2Engine
from jaxformer.decoding.engine import Engine, Task
from jaxformer.decoding.parts import warn_of_copies
from jaxformer.decoding.search import SearchResult
from jaxformer.decoding.shapes import ProgramShape
from jaxformer.decoding.text_pipeline import OfParts, TextResult, TextTasks
from jaxformer.decoding.translator import Translator
from jaxformer.system.allocator import trim
from jaxformer.system.errors import InputError

STEPS = 8  # of a turn at most
SMALL_REQUEST = 128  # source tokens at most
LARGE_SLOTS = 16  # of a device, for large requests: few, so that a step is short
# Of each device, for texts with phrases, whose programs have one shape: they are rare.
PHRASE_SLOTS = 4
# How many programs of `RequestQueue.compile` each kind of request needs.
TEXTS, PAIRS, PHRASES = 1, 2, 3
# Seconds of a turn. Small requests begin between two turns, so turns are short while
# there are large ones. Otherwise they are long, since fewer refills are faster.
SHORT_TURN, LONG_TURN = 0.01, 0.04
# Of small requests, of large ones, and of texts with phrases: their seconds are
# multiplied by these to compare the engines.
WEIGHTS = 1, 2, 1


class RequestQueue:
    """The requests of a translator; one thread calls `compile`, and another the others.

    `text.tasks` may be called in any thread. `slots` bounds the sentences of each
    device in the search of small requests, `attention` the tokens of a text given to
    the translator's methods `attention` and `score`.
    """

    def __init__(self, translator: Translator, *, slots: int, attention: int) -> None:
        self.translator = translator
        self.text, output = translator.text.limited()
        self._used = [0.0] * 3  # seconds x weight
        self._step_seconds = [SHORT_TURN] * 3  # recent mean
        self._compiler: Engine | None = None
        if (export := translator.export) is not None:  # it has nothing to compile
            sizes = slots, min(slots, LARGE_SLOTS), PHRASE_SLOTS
            self._engines = [CTranslate2Engine(export, size) for size in sizes]
            self._programs = [lambda: None] * PHRASES
            return
        sizes = {"source": self.text.longest, "output": output}
        forcing, params = translator.forcing, translator.params[0]
        make = partial(Engine, translator.programs, translator.options.batch_tokens)
        small, large, phrased = self._engines = make(), make(), make(with_phrases=True)
        self._compiler = make()
        self._compiler.shapes.limit(**sizes, slots=slots)
        few = large.shapes.limit(**sizes, slots=min(slots, LARGE_SLOTS))  # of `shapes`
        shapes = small.shapes.limit(**sizes, slots=slots)
        first, *texts = [partial(self._compile, s, s in few) for s in shapes]
        longest, *pairs = [
            partial(forcing.compile, params, size) for size in forcing.limit(attention)
        ]
        self._programs = [first, longest, *texts, *pairs]
        if not translator.options.is_sampling:
            few = {"slots": min(slots, PHRASE_SLOTS), "is_one": True}
            (shape,) = phrased.shapes.limit(**sizes, **few)
            self._programs.insert(PHRASES - 1, partial(phrased.compile, shape))

    def compile(self) -> Iterator[tuple[int, int]]:
        """Compile all programs; yields the numbers of those done and of all.

        Once TEXTS are done `submit` takes texts, once PAIRS are the translator gives
        attention and scores, and once PHRASES are `submit` takes texts with phrases.
        """
        for number, compile_next in enumerate(self._programs):
            yield number, len(self._programs)
            compile_next()
        if self._compiler is not None:
            self._compiler.clear()
        trim()
        yield len(self._programs), len(self._programs)

    def _compile(self, shape: ProgramShape, is_for_large: bool) -> None:
        small, large, _ = self._engines
        self._compiler.compile(shape)
        for engine in (small, large) if is_for_large else (small,):
            engine.shapes.add(shape)

    def submit(
        self,
        texts: Sequence[TextTasks],
        done: Callable[[list[TextResult]], None],
        failed: Callable[[InputError], None],
        *,
        request: object,
    ) -> None:
        """Add texts of `text.tasks`; `advance` passes all results to `done`.

        If a result has no finite scores, `advance` passes the error to `failed`. Parts
        of different requests take turns, as in `Engine.submit`. The parts of a small
        request share one turn, so that it is not much slower than a single text.
        """
        found: dict[int, OfParts] = {}
        if not texts:
            done([])

        def keep(index: int, parts: OfParts) -> None:
            found[index] = parts
            if len(found) == len(texts):
                every = [found[number] for number in range(len(texts))]
                results = self.text.results(texts, every)
                warn_of_copies([each.hypotheses for each in results])
                done(results)

        def report(task: Task, result: SearchResult) -> None:
            try:
                task.done(result)
            except InputError as error:
                failed(error)

        before, lengths = 0.0, [len(t.source) for text in texts for t in text.tasks]
        is_large = sum(lengths) > SMALL_REQUEST
        for index, text in enumerate(texts):
            for task in self.text.reporting(text.tasks, partial(keep, index)):
                engine = self._engines[2 if task.phrases else is_large]
                own = {"request": request, "done": partial(report, task)}
                engine.submit(task._replace(turn=before, **own))
                before += len(task.source) / (1 if is_large else len(lengths))

    def cancel(self, request: object) -> None:
        """Drop all parts of a request, waiting or begun."""
        for engine in self._engines:
            engine.cancel(request)

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of parts that wait and that are in the search."""
        waiting, begun = zip(*(engine.load for engine in self._engines), strict=True)
        return sum(waiting), sum(begun)

    def advance(self) -> bool:
        """Take a turn of a few steps in one engine; False if nothing is left."""
        busy = [n for n, engine in enumerate(self._engines) if any(engine.load)]
        if not busy:
            return False
        number = min(busy, key=self._used.__getitem__)  # of equals, the small requests
        start = time.monotonic()
        turn = LONG_TURN if busy == [0] else SHORT_TURN
        steps = max(1, min(STEPS, round(turn / self._step_seconds[number])))
        self._engines[number].advance(steps)
        self._engines[number].wait()
        seconds = time.monotonic() - start
        self._step_seconds[number] = (self._step_seconds[number] + seconds / steps) / 2
        self._used[number] += seconds * WEIGHTS[number]
        least = min(self._used[number] for number in busy)
        for idle in {0, 1, 2} - {*busy}:
            self._used[idle] = least  # it gets no extra time afterwards
        return any(self.load)
