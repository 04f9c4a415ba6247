"""Translate sentences: the search of section 6.1 around a trained model."""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import jax
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from jaxformer import processes
from jaxformer.batch import Tokenizer
from jaxformer.decoding.engine import Engine, Task
from jaxformer.decoding.forced import Attention, PairScore, TeacherForcing
from jaxformer.decoding.long_lines import parts_of
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchResult
from jaxformer.models.sequence_model import Model

ROUND = 256  # sentences of each process between synchronised calls of `check_stop`
BAR_DELAY = 1.0  # seconds before a progress bar appears


class Hypothesis(NamedTuple):
    """A translation and its probability under the model."""

    text: str
    score: float  # log P / length penalty
    log_probability: float  # natural logarithm, of the text and its end
    tokens: int  # end of sentence included


class Translator:
    """A model, or an ensemble, with its tokeniser, ready to translate.

    `models` and `params` are the members of an ensemble, mostly one. `rows` shards the
    rows of a batch over devices of this process; None: one device. Not thread safe.
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
        self.tokenizer, self.options = tokenizer, options
        positions = filter(None, (model.longest for model in models))
        self._positions = min(positions, default=None)
        limits = filter(None, (options.max_source_length, self._positions))
        self.longest = min(limits, default=None)  # tokens of a source, EOS included
        scorer, tokens = Scorer(models), options.batch_tokens
        self._weights = jax.jit(scorer.weights)
        self._engine = Engine(scorer, options, batch_tokens=tokens, rows=rows)
        self._forced = TeacherForcing(models[0], tokenizer, batch_tokens=tokens)
        self.params = params

    @property
    def params(self) -> Sequence[Any]:
        """The members' parameters; they may be replaced between two calls."""
        return self._params

    @params.setter
    def params(self, params: Sequence[Any]) -> None:
        self._params = params
        self._engine.weights = self._weights(params)

    def __call__(self, sentences: str | Sequence[str]) -> str | list[str]:
        """Translate a sentence, or each of several; a blank one stays blank."""
        if isinstance(sentences, str):
            return self([sentences])[0]
        return best_texts(self.translate(sentences))

    def translate(
        self, sentences: Sequence[str], *, prefixes: Sequence[str] | None = None
    ) -> list[list[Hypothesis]]:
        """Return each sentence's n_best hypotheses, best first.

        A short sentence may have fewer. `prefixes` are the forced beginnings of the
        translations. Raises InputError for a line that is too long, if the options
        refuse it.
        """
        found = sorted(self.translate_part(sentences, prefixes=prefixes))
        return [hypotheses for _, hypotheses in found]

    def translate_all(
        self,
        sentences: Sequence[str],
        check_stop: Callable[[], None] = lambda: None,
        **details: Any,
    ) -> list[list[Hypothesis]]:
        """Translate sentences in all processes, each its share.

        Returns all hypotheses in every process. If stderr is a terminal, process 0
        shows its progress there. `details` are further arguments of `translate_part`.
        """
        part = (processes.index(), processes.count())
        with ExitStack() as stack:
            if processes.is_first() and sys.stderr.isatty():
                total = len(sentences[:: part[1]])
                bar = tqdm(
                    total=total, delay=BAR_DELAY, leave=False, dynamic_ncols=True
                )
                stack.enter_context(logging_redirect_tqdm())
                details["report"] = stack.enter_context(bar).update
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
        first: int = 0,
        report: Callable[[], object] = lambda: None,
    ) -> list[tuple[int, list[Hypothesis]]]:
        """Translate part (p, of) of the sentences: their indices and hypotheses.

        `check_stop` is called equally often in every part, and may raise to end the
        work. `first` is the number of earlier lines: line numbers in messages, and the
        seeds of samples, count from there. `report` is called after each sentence.
        """
        number, parts = part
        prefixes = prefixes or [""] * len(sentences)
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        size = ROUND * parts if parts > 1 else max(len(order), 1)
        done: list[tuple[int, list[Hypothesis]]] = []

        def keep(index: int, hypotheses: list[Hypothesis]) -> None:
            done.append((index, hypotheses))
            report()

        for start in range(0, len(order), size):
            check_stop()
            own = order[start : start + size][number::parts]
            sources = self.tokenizer.encode([sentences[i] for i in own])
            begins = self.tokenizer.encode_target([prefixes[i] for i in own])
            lines = [
                (i, self._tasks(sentences[i], source, begin, first + i))
                for i, source, begin in zip(own, sources, begins, strict=True)
            ]
            # Longest first, by tokens; the number of characters is an estimate.
            lines.sort(key=lambda line: -max([0, *(len(t.source) for t in line[1])]))
            for i, tasks in lines:
                self._submit(tasks, functools.partial(keep, i))
            try:
                while self._engine.advance():
                    if parts == 1:
                        check_stop()
            except BaseException:
                self._engine.clear()
                raise
        return done

    def attention(self, source: str, target: str) -> Attention:
        """Return the attention maps of the first member for one pair of sentences."""
        return self._forced.attention(self.params[0], source, target)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """Score given translations, token by token, with the first member."""
        return self._forced.score(self.params[0], sources, targets)

    def _tasks(
        self, sentence: str, source: list[int], prefix: list[int], number: int
    ) -> list[Task]:
        """The tasks of a sentence: one, none if it is blank, several if it is split."""
        parts = [source] if sentence.strip() else []
        if self.longest is not None and len(source) > self.longest:
            how = {"longest": self.longest, "policy": self.options.long_lines}
            parts = parts_of(sentence, self.tokenizer.encode, line=number + 1, **how)
        seed, tasks = self.options.seed * 1_000_003 + number, []
        for ids in parts:
            begin = [] if tasks else prefix[:-1]
            limit = max(len(ids) + self.options.extra_length, len(begin) + 1)
            limit = min(limit, self._positions or limit)
            least = min(self.options.min_length, limit)
            tasks.append(Task(ids, limit, least, begin[: limit - 1], seed))
        return tasks

    def _submit(
        self, tasks: Sequence[Task], done: Callable[[list[Hypothesis]], None]
    ) -> None:
        """Submit the tasks of one sentence; pass its hypotheses to `done`."""
        found: list[list[Hypothesis] | None] = [None] * len(tasks)
        if not tasks:
            done([Hypothesis("", 0.0, 0.0, 0)])

        def keep(part: int, result: SearchResult) -> None:
            found[part] = self._hypotheses(result)
            if None not in found:
                done(_joined(found))

        for part, task in enumerate(tasks):
            self._engine.submit(task._replace(done=functools.partial(keep, part)))

    def _hypotheses(self, found: SearchResult) -> list[Hypothesis]:
        rows = zip(*(leaf.tolist() for leaf in found), strict=True)
        hypotheses = [
            Hypothesis(self.tokenizer.decode(tokens), score, log_probability, length)
            for tokens, length, score, log_probability in rows
            if length
        ]
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        return hypotheses[: self.options.n_best]


def best_texts(found: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """The best translation of each sentence."""
    return [hypotheses[0].text for hypotheses in found]


def _joined(parts: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
    """Join the best hypotheses of all parts, then the second best, and so on."""
    joined = []
    for chosen in zip(*parts, strict=False):
        texts, scores, log_probabilities, tokens = zip(*chosen, strict=True)
        sums = map(math.fsum, (scores, log_probabilities))
        joined.append(Hypothesis(" ".join(filter(None, texts)), *sums, sum(tokens)))
    return joined
