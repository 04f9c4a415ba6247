"""Sentences in, sentences out: the search of section 6.1 around a trained model.

Sentences are decoded longest first, by continuous batching (`engine`); the translations
come back in the order of the input.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxformer.batch import Tokenizer
from jaxformer.decoding.engine import Engine, Task
from jaxformer.decoding.forced import Attention, PairScore, TeacherForcing
from jaxformer.decoding.long_lines import parts_of
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchResult
from jaxformer.models.sequence_model import Model

logger = logging.getLogger(__name__)

ROUND = 256  # sentences of each process between two moments when all must agree


class Hypothesis(NamedTuple):
    """A translation, and how probable the model finds it."""

    text: str
    score: float  # log P / length penalty
    log_probability: float  # natural logarithm, of the text and its end
    tokens: int  # pieces, end of sentence included


class Translator:
    """A model, or several that vote, and their tokeniser, ready to translate.

    `models` and `params` are the members of an ensemble, mostly one. `rows` says how
    the rows of a batch lie on devices of this process, None on one. Not thread safe.
    """

    def __init__(
        self,
        models: Sequence[Model],
        params: Sequence[Any],
        tokenizer: Tokenizer,
        *,
        options: TranslateOptions,
        rows: jax.sharding.NamedSharding | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.options = options
        limits = (model.longest for model in models)
        self._positions = min(filter(None, limits), default=None)
        self._scorer = Scorer(models)
        self._arrange = jax.jit(self._scorer.weights)
        self._engine = Engine(
            self._scorer, self.options, batch_tokens=options.batch_tokens, rows=rows
        )
        self._forced = TeacherForcing(
            models[0], tokenizer, batch_tokens=options.batch_tokens
        )
        self.params = params
        self.longest = self._longest_source()  # most source pieces, EOS included

    @property
    def params(self) -> Sequence[Any]:
        """The members' parameters, which may be set anew between two calls."""
        return self._params

    @params.setter
    def params(self, params: Sequence[Any]) -> None:
        self._params = params
        self._forced.params = params[0]
        self._engine.weights = self._arrange(params)

    def _longest_source(self) -> int | None:
        """The user's limit, or what learned positions can hold."""
        asked = self.options.max_source_length
        limits = [limit for limit in (asked, self._positions) if limit is not None]
        return min(limits, default=None)

    def __call__(self, sentences: str | Sequence[str]) -> str | list[str]:
        """Translate a sentence, or each of several; a blank one stays blank."""
        if isinstance(sentences, str):
            return self([sentences])[0]
        return [found[0].text for found in self.translate(sentences)]

    def translate(
        self, sentences: Sequence[str], *, prefixes: Sequence[str] | None = None
    ) -> list[list[Hypothesis]]:
        """Return each sentence's n_best hypotheses, best first.

        A short sentence may have fewer. `prefixes` say how each translation
        begins. Raises InputError for a line that is too long, by the user's wish.
        """
        found: list[list[Hypothesis]] = [[] for _ in sentences]
        for index, hypotheses in self.translate_part(sentences, prefixes=prefixes):
            found[index] = hypotheses
        return found

    def translate_part(
        self,
        sentences: Sequence[str],
        part: tuple[int, int] = (0, 1),
        check_stop: Callable[[], None] = lambda: None,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
    ) -> list[tuple[int, list[Hypothesis]]]:
        """Translate part (p, of) of the sentences: their indices and hypotheses.

        `check_stop` is called equally often in every part, and may raise to end the
        work. `first` is how many sentences came before: line numbers in
        messages, and the seeds of samples, count from there.
        """
        order = sorted(
            range(len(sentences)), key=lambda i: len(sentences[i]), reverse=True
        )
        done: list[tuple[int, list[Hypothesis]]] = []
        rounds = [order] if part[1] == 1 else _rounds(order, part[1])
        for indices in rounds:
            check_stop()
            own = indices[part[0] :: part[1]]
            texts = [sentences[i] for i in own]
            begins = [prefixes[i] for i in own] if prefixes is not None else None
            works = self._works(texts, begins, [first + i for i in own])
            # By pieces, which a sentence's characters only suggest.
            for place in sorted(range(len(own)), key=lambda p: -works[p].longest):
                works[place].submit_to(
                    self._engine,
                    lambda found, index=own[place]: done.append((index, found)),
                )
            try:
                while self._engine.advance():
                    if part[1] == 1:
                        check_stop()
            except BaseException:
                self._engine.clear()
                raise
        return done

    def submit(
        self,
        sentence: str,
        done: Callable[[list[Hypothesis]], None],
        *,
        prefix: str = "",
        line: int = 0,
    ) -> None:
        """Let a sentence join the search in flight; `advance` calls `done` with it.

        Raises InputError if the sentence is too long, by the user's wish.
        """
        (work,) = self._works([sentence], [prefix] if prefix else None, [line])
        work.submit_to(self._engine, done)

    def advance(self, steps: int = 8) -> bool:
        """Take a few steps for all that was submitted; False if nothing is left."""
        return self._engine.advance(steps)

    def attention(self, source: str, target: str) -> Attention:
        """Where each head of the first member looks, for one pair of sentences."""
        return self._forced.attention(source, target)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """How probable the first member finds each given translation, by piece."""
        return self._forced.score(sources, targets)

    def _works(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None,
        numbers: Sequence[int],
    ) -> list["_Work"]:
        """What each sentence, whose number in the input is known, is to the engine."""
        encoded = self.tokenizer.encode(list(sentences))
        begins: list[list[int]] = [[] for _ in sentences]
        if prefixes is not None:
            begins = [ids[:-1] for ids in self.tokenizer.encode_target(list(prefixes))]
        works = []
        for sentence, source, begin, number in zip(
            sentences, encoded, begins, numbers, strict=True
        ):
            parts = [source] if sentence.strip() else []
            if self.longest is not None and len(source) > self.longest:
                parts = parts_of(
                    sentence,
                    self.tokenizer.encode,
                    longest=self.longest,
                    policy=self.options.long_lines,
                    line=number + 1,
                )
            tasks = [
                self._task(ids, begin if place == 0 else [], number)
                for place, ids in enumerate(parts)
            ]
            works.append(_Work(tasks, self._hypotheses))
        return works

    def _task(self, source: list[int], prefix: list[int], number: int) -> Task:
        limit = max(len(source) + self.options.extra_length, len(prefix) + 1)
        if self._positions is not None:
            limit = min(limit, self._positions)
        return Task(
            source=source,
            max_length=limit,
            done=lambda found: None,
            min_length=min(self.options.min_length, limit),
            prefix=prefix[: limit - 1],
            seed=self.options.seed * 1_000_003 + number,
        )

    def _hypotheses(self, found: SearchResult) -> list[Hypothesis]:
        """Text of what was found, best first."""
        hypotheses = [
            Hypothesis(
                self.tokenizer.decode(tokens.tolist()),
                float(score),
                float(log_probability),
                int(length),
            )
            for tokens, length, score, log_probability in zip(*found, strict=True)
            if length
        ]
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        return hypotheses[: self.options.n_best]


class _Work:
    """A sentence as tasks of the engine: one, none if blank, several if split."""

    def __init__(
        self,
        tasks: Sequence[Task],
        read: Callable[[SearchResult], list[Hypothesis]],
    ) -> None:
        self._tasks, self._read = tasks, read
        self._found: dict[int, list[Hypothesis]] = {}
        self.longest = max((len(task.source) for task in tasks), default=0)

    def submit_to(
        self, engine: Engine, done: Callable[[list[Hypothesis]], None]
    ) -> None:
        """Submit all parts; `done` gets the hypotheses of the whole."""
        if not self._tasks:
            done([Hypothesis("", 0.0, 0.0, 0)])

        def keep(place: int, found: SearchResult) -> None:
            self._found[place] = self._read(found)
            if len(self._found) == len(self._tasks):
                done(_joined([self._found[n] for n in range(len(self._tasks))]))

        for place, task in enumerate(self._tasks):
            engine.submit(
                task._replace(done=lambda found, place=place: keep(place, found))
            )


def _joined(parts: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
    """The best of each part as one, then the second best of each, and so on."""
    if len(parts) == 1:
        return parts[0]
    return [
        Hypothesis(
            " ".join(h.text for h in chosen if h.text),
            math.fsum(h.score for h in chosen),
            math.fsum(h.log_probability for h in chosen),
            sum(h.tokens for h in chosen),
        )
        for chosen in zip(*parts, strict=False)
    ]


def _rounds(order: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Cut an order into rounds, so many that all parts have equally many."""
    size = ROUND * parts
    return [order[start : start + size] for start in range(0, len(order), size)]
