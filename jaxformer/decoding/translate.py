"""Translate sentences: the search of section 6.1 around a trained model."""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import jax

from jaxformer.decoding.engine import Engine
from jaxformer.decoding.forced import GivenPairs, TeacherForcing
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.parts import (
    Choose,
    Hypothesis,
    best_texts,
    distinct_texts,
    hypotheses_of,
    joined,
    lines_of,
    one_each,
    parts_of,
    warn_of_no_tag,
)
from jaxformer.decoding.phrases import encode_phrases
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchResult
from jaxformer.decoding.side_by_side import Searches
from jaxformer.decoding.tasks import Task
from jaxformer.models.sequence_model import Model
from jaxformer.system import processes
from jaxformer.system.errors import InputError
from jaxformer.system.progress import progress
from jaxformer.tokens import UNK, Tokenizer

ROUND = 256  # sentences of each process between synchronised calls of `check_stop`
# Between the seeds of two parts: odd, and about 2^32 over the golden ratio, so that the
# parts of near lines do not share seeds.
SEEDS_APART = 0x9E3779B1


class Translator(GivenPairs):
    """A model, or an ensemble, with its tokeniser, ready to translate.

    `models` and `params` are the members of an ensemble, mostly one. `language` is that
    of the source, such as "en". `rows` shards the rows of a batch over devices of this
    process; None: one device. Up to `searches` searches run at once, each in a
    thread; the sentences are divided among them. `choose` takes the source texts of all
    parts and the hypotheses of each, and returns the hypotheses in a new order.
    `needs_tag` warns of a text without one of the vocabulary's tags. Not thread safe.
    """

    def __init__(
        self,
        models: Sequence[Model],
        params: Sequence[Any],
        tokenizer: Tokenizer,
        *,
        language: str,
        options: TranslateOptions,
        rows: jax.sharding.NamedSharding | None,
        searches: int = 1,
        choose: Choose | None = None,
        needs_tag: bool = True,
    ) -> None:
        self.tokenizer, self.options, self._choose = tokenizer, options, choose
        self._names = tokenizer.source_pieces(), tokenizer.pieces()
        self._needs_tag = needs_tag and not options.tag
        self.tags = [name for name in self._names[0] if tokenizer.language_code(name)]
        if options.tag not in ("", *self.tags):
            known = ", ".join(self.tags) or "none"
            raise InputError(
                f"the vocabulary has no tag {options.tag!r}; it has {known}"
            )
        self._language = language if options.split_sentences else None
        positions = list(filter(None, (model.longest for model in models)))
        self._most = min(positions, default=math.inf)  # tokens of a translation
        limits = filter(None, (options.max_source_length, *positions))
        self.longest = min(limits, default=None)  # tokens of a source, EOS included
        scorer, tokens = Scorer(models), options.batch_tokens
        self._weights = jax.jit(scorer.weights)
        if choose:  # among the whole beam
            options = dataclasses.replace(options, n_best=options.beam_size)
        make = functools.partial(Engine, scorer, options, rows=rows)
        self._search = Searches(make, tokens, searches, options.beam_size)
        self._forced = TeacherForcing(models[0], tokenizer, batch_tokens=tokens)
        self.params = params

    @property
    def params(self) -> Sequence[Any]:
        """The members' parameters; they may be replaced between two calls."""
        return self._params

    @params.setter
    def params(self, params: Sequence[Any]) -> None:
        self._params = params
        self._search.set_weights(self._weights(params))

    def release(self) -> None:
        """Drop all arrays on the devices; `params` must be set before the next call."""
        self._params = None
        self._search.release()

    def __call__(self, sentences: str | Sequence[str]) -> str | list[str]:
        """Translate a text: a string gives a string, a sequence of them a list.

        A blank text stays blank.
        """
        if isinstance(sentences, str):
            return self([sentences])[0]
        return best_texts(self.translate(sentences))

    def translate(
        self,
        sentences: str | Sequence[str],
        *,
        prefixes: str | Sequence[str] | None = None,
        phrases: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> list[Hypothesis] | list[list[Hypothesis]]:
        """Return the n_best hypotheses of a text, best first: a list for a string.

        A sequence of strings gives a list of such lists. There are fewer than n_best if
        the beam holds fewer different texts. `prefixes` are the forced beginnings of
        the translations, of the same form. `phrases` are what a translation contains: a
        list for a string, and a list of lists for a sequence. Raises InputError if they
        do not fit, and for a line that is too long, if the options refuse it.
        """
        if isinstance(sentences, str):
            given = {"prefixes": prefixes, "phrases": phrases}
            given = {k: None if v is None else [v] for k, v in given.items()}
            return self.translate([sentences], **given)[0]
        found = self.translate_part(sentences, prefixes=prefixes, phrases=phrases)
        return [hypotheses for _, hypotheses in sorted(found)]

    def translate_all(
        self,
        sentences: Sequence[str],
        check_stop: Callable[[], None] = lambda: None,
        **details: Any,
    ) -> list[list[Hypothesis]]:
        """Translate sentences in all processes, each its share.

        Returns all hypotheses in every process. `details` are further arguments of
        `translate_part`; without `report`, process 0 reports its progress.
        """
        part = (processes.index(), processes.count())
        with ExitStack() as held:
            if "report" not in details:
                total = len(sentences[:: part[1]])
                bar = progress("translating", total, unit="sentences")
                details["report"] = held.enter_context(bar).update
            with processes.sharing_mistakes():
                own = self.translate_part(sentences, part, check_stop, **details)
        found = sorted(itertools.chain.from_iterable(processes.gather(own)))
        return [[Hypothesis(*each) for each in hypotheses] for _, hypotheses in found]

    def translate_part(
        self,
        sentences: Sequence[str],
        part: tuple[int, int] = (0, 1),
        check_stop: Callable[[], None] = lambda: None,
        *,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
        first: int = 0,
        report: Callable[[], object] = lambda: None,
    ) -> list[tuple[int, list[Hypothesis]]]:
        """Translate part (p, of) of the sentences: their indices and hypotheses.

        `check_stop` is called equally often in every part, and may raise to end the
        work. `first` is the number of earlier lines: line numbers in messages, and the
        seeds of samples, count from there. `report` is called after each sentence, in
        any thread.
        """
        number, parts = part
        prefixes = one_each("prefixes", prefixes, len(sentences), default="")
        phrases = one_each("phrases", phrases, len(sentences), default=())
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        size = ROUND * parts if parts > 1 else max(len(order), 1)
        done: list[tuple[int, list[Hypothesis]]] = []
        found: dict[int, list[list[Hypothesis]]] = {}

        def keep(index: int, hypotheses: list[list[Hypothesis]]) -> None:
            found[index] = hypotheses
            report()

        for start in range(0, len(order), size):
            check_stop()
            own = order[start : start + size][number::parts]
            texts = [
                (i, *self._tasks(sentences[i], prefixes[i], phrases[i], first + i))
                for i in own
            ]
            # Longest first, by tokens; the number of characters is an estimate.
            texts.sort(key=lambda text: -max([0, *(len(t.source) for t in text[1])]))
            given: list[Task] = []
            for i, tasks, _ in texts:
                given += self._reporting(tasks, functools.partial(keep, i))
            self._search.run(given, check_stop if parts == 1 else lambda: None)
            complete = [(*text, found.pop(i)) for i, *text in texts]
            done += zip((i for i, *_ in texts), self._joined(complete), strict=True)
        return done

    def sentences(self, text: str) -> list[str]:
        """Split a text into what is translated by itself, as the options say."""
        tag, lines = self._lines(text)
        return [each and tag + each for line in lines for each in line]

    def of_sentences(self) -> "Translator":
        """Return this translator for texts that it does not split into sentences."""
        translator = copy.copy(self)
        translator._language = None
        return translator

    def _lines(self, text: str) -> tuple[str, list[list[str]]]:
        tag, lines = lines_of(text, self.tokenizer, self._language)
        if self.tags and self._needs_tag and not tag and any(map(any, lines)):
            warn_of_no_tag(tuple(self.tags))
        return tag or self.options.tag, lines

    def _tasks(
        self, text: str, prefix: str, phrases: Sequence[str], number: int
    ) -> tuple[list[Task], list[int]]:
        """The tasks of a text's parts, and how many each of its lines has."""
        options, tasks = self.options, []
        tag, lines = self._lines(text)

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return self.tokenizer.encode([each and tag + each for each in texts])

        how = {"tags": bool(tag), "longest": self.longest, "line": number + 1}
        how["policy"] = options.long_lines
        parts = [
            [p for each in line for p in parts_of(each, encode, **how)]
            for line in lines
        ]
        begin = self.tokenizer.encode_target([prefix])[0][:-1] if prefix else []
        if UNK in begin:
            raise InputError(
                f"line {number + 1}: the prefix has a character that the vocabulary "
                "lacks; leave it out"
            )
        if any(parts) and len(begin) + 1 > self._most:
            raise InputError(
                f"line {number + 1}: the prefix has {len(begin) + 1} pieces, end "
                f"included, more than {self._most}; shorten it"
            )
        if any(phrases) and options.is_sampling:
            raise InputError("samples have no phrases; leave out the temperature")
        found, needed = encode_phrases(
            phrases, self.tokenizer.encode_target, line=number + 1,
            parts=sum(map(len, parts)), prefix=begin, most=self._most,
        )  # fmt: skip
        for part, (own, ids) in enumerate(itertools.chain.from_iterable(parts)):
            limit = max(len(ids) + options.extra_length, needed, options.min_length)
            limit = min(limit, self._most)
            least = min(options.min_length, limit)
            seed = options.seed * 1_000_003 + number + part * SEEDS_APART
            given = {"phrases": found, "text": tag + own}
            tasks.append(Task(ids, limit, least, begin, seed, **given))
            begin, needed = [], 0  # the first part alone has the prefix
        return tasks, list(map(len, parts))

    def _reporting(
        self, tasks: Sequence[Task], done: Callable[[list[list[Hypothesis]]], None]
    ) -> Iterator[Task]:
        """Let the tasks of one text pass the hypotheses of its parts to `done`."""
        found: list[list[Hypothesis] | None] = [None] * len(tasks)
        ended = itertools.count(1)  # several threads may finish one text
        if not tasks:
            done([])

        def keep(part: int, result: SearchResult) -> None:
            found[part] = self._hypotheses(tasks[part].source, result)
            if next(ended) == len(tasks):
                done(found)

        for part, task in enumerate(tasks):
            yield task._replace(done=functools.partial(keep, part))

    def _hypotheses(self, source: list[int], found: SearchResult) -> list[Hypothesis]:
        return self._distinct(hypotheses_of(self.tokenizer, self._names, source, found))

    def _joined(
        self, texts: Sequence[tuple[list[Task], list[int], list[list[Hypothesis]]]]
    ) -> list[list[Hypothesis]]:
        """Choose among the hypotheses of each part; join those of each text."""
        found = [hypotheses for *_, parts in texts for hypotheses in parts]
        if self._choose:
            sources = [task.text for tasks, *_ in texts for task in tasks]
            found = self._choose(sources, found)
        left = iter([each[: self.options.n_best] for each in found])
        return [
            self._distinct(joined([*islice(left, len(tasks))], sizes))
            for tasks, sizes, _ in texts
        ]

    def _distinct(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Keep the first hypothesis of each text; samples may repeat a text."""
        return hypotheses if self.options.is_sampling else distinct_texts(hypotheses)
