"""A translator that many requests share, with all its programs compiled ahead."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxformer.decoding.lanes import SMALL_REQUEST, Lanes
from jaxformer.decoding.tasks import Task
from jaxformer.decoding.translate import Hypothesis, Translator

STEPS = 8  # of an advance at most
# Of each device, for texts with phrases, whose programs have one shape: they are rare.
PHRASE_SLOTS = 4


class ServedTranslator(Translator):
    """A translator for texts that begin at any time; call `compile` first.

    One thread calls its methods; `prepare` may be called in any.
    """

    def compile(self, slots: int, attention: int) -> Iterator[tuple[int, int]]:
        """Compile all programs; yields the numbers of those done and of all.

        `slots` bounds the sentences of each device in the search of small requests,
        `attention` the tokens of a text given to the method of that name.
        """
        self._most = min(self.longest + self.options.extra_length, self._most)
        sizes = {"source": self.longest, "output": self._most}
        (engine,), phrased = self._search.engines, self._search.phrased
        engines = [(engine, engine.limit(**sizes, slots=slots))]
        if not self.options.is_sampling:
            few = {"slots": min(slots, PHRASE_SLOTS), "is_one": True}
            engines.append((phrased, phrased.limit(**sizes, **few)))
        work = [
            *(functools.partial(engine.compile, shape)
              for engine, shapes in engines for shape in shapes),
            *(functools.partial(self._forced.compile, self.params[0], size)
              for size in self._forced.limit(attention)),
        ]  # fmt: skip
        for number, compile_next in enumerate(work):
            yield number, len(work)
            compile_next()
        engine.clear()
        phrased.clear()
        self._search = Lanes(engine, phrased)

    def prepare(
        self, text: str, prefix: str, phrases: Sequence[str] = (), number: int = 0
    ) -> tuple[list[Task], list[int]]:
        """Tokenise a text for `submit`: its parts, and how many each of its lines has.

        `number` is that of the text in its request; seeds of samples count from it.

        Raises InputError if the prefix is too long, or the text, if the options refuse
        long ones, and for phrases that cannot be in its translation.
        """
        return self._tasks(text, prefix, phrases, number)

    def submit(
        self,
        texts: Sequence[tuple[list[Task], list[int]]],
        done: Callable[[list[list[Hypothesis]]], None],
        *,
        request: Any,
    ) -> None:
        """Add prepared texts to the search; `advance` passes all results to `done`.

        Parts of different requests take turns.
        """
        found: dict[int, list[list[Hypothesis]]] = {}
        if not texts:
            done([])

        def keep(index: int, parts: list[list[Hypothesis]]) -> None:
            found[index] = parts
            if len(found) == len(texts):
                done(self._joined([(*text, found[n]) for n, text in enumerate(texts)]))

        lengths = [len(task.source) for tasks, _ in texts for task in tasks]
        before = itertools.accumulate(lengths, initial=0)
        own = {"request": request, "is_large": sum(lengths) > SMALL_REQUEST}
        for index, (tasks, _) in enumerate(texts):
            tasks = [task._replace(before=next(before), **own) for task in tasks]
            for task in self._reporting(tasks, functools.partial(keep, index)):
                self._search.submit(task)

    def cancel(self, request: Any) -> None:
        """Drop all parts of a request, waiting or begun."""
        self._search.cancel(request)

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of parts that wait and that are in the search."""
        return self._search.load

    def advance(self) -> bool:
        """Take a few steps of a search; False if nothing is left."""
        return self._search.advance(STEPS)
