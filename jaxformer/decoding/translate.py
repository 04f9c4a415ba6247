"""Translate sentences: the search of section 6.1 around a trained model."""

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxformer import processes
from jaxformer.batch import Tokenizer
from jaxformer.decoding.engine import Engine, Task
from jaxformer.decoding.forced import Attention, PairScore, Side, TeacherForcing
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.parts import (
    Hypothesis,
    best_texts,
    joined,
    lines_of,
    parts_of,
    warn_of_no_tag,
)
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import SearchResult
from jaxformer.errors import InputError
from jaxformer.models.sequence_model import Model
from jaxformer.progress import progress

ROUND = 256  # sentences of each process between synchronised calls of `check_stop`
# Between the seeds of two parts: odd, and about 2^32 over the golden ratio, so that the
# parts of near lines do not share seeds.
SEEDS_APART = 0x9E3779B1


class Translator:
    """A model, or an ensemble, with its tokeniser, ready to translate.

    `models` and `params` are the members of an ensemble, mostly one. `language` is that
    of the source, such as "en". `rows` shards the rows of a batch over devices of this
    process; None: one device. `choose` orders the hypotheses of a sentence anew. Not
    thread safe.
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
        choose: Callable[[list[Hypothesis]], list[Hypothesis]] | None = None,
    ) -> None:
        self.tokenizer, self.options, self._choose = tokenizer, options, choose
        self._names = tokenizer.source_pieces(), tokenizer.pieces()
        self.tags = [name for name in self._names[0] if tokenizer.language_code(name)]
        if options.tag not in ("", *self.tags):
            known = ", ".join(self.tags) or "none"
            raise InputError(
                f"the vocabulary has no tag {options.tag!r}; it has {known}"
            )
        self._language = language if options.split_sentences else None
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
    ) -> list[Hypothesis] | list[list[Hypothesis]]:
        """Return the n_best hypotheses of a text, best first: a list for a string.

        A sequence of strings gives a list of such lists. There are fewer than n_best if
        the beam holds fewer different texts. `prefixes` are the forced beginnings of
        the translations, of the same form. Raises InputError if they do not fit, and
        for a line that is too long, if the options refuse it.
        """
        if isinstance(sentences, str):
            prefixes = None if prefixes is None else [prefixes]
            return self.translate([sentences], prefixes=prefixes)[0]
        found = sorted(self.translate_part(sentences, prefixes=prefixes))
        return [hypotheses for _, hypotheses in found]

    def translate_all(
        self,
        sentences: Sequence[str],
        check_stop: Callable[[], None] = lambda: None,
        **details: Any,
    ) -> list[list[Hypothesis]]:
        """Translate sentences in all processes, each its share.

        Returns all hypotheses in every process; process 0 reports its progress.
        `details` are further arguments of `translate_part`.
        """
        part = (processes.index(), processes.count())
        total = len(sentences[:: part[1]])
        with progress("translating", total, unit="sentences") as bar:
            details["report"] = bar.update
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
        prefixes = [""] * len(sentences) if prefixes is None else prefixes
        if isinstance(prefixes, str) or len(prefixes) != len(sentences):
            count = "one string" if isinstance(prefixes, str) else len(prefixes)
            raise InputError(
                f"prefixes has {count} for {len(sentences)} texts; give a list with "
                "one for each text"
            )
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        size = ROUND * parts if parts > 1 else max(len(order), 1)
        done: list[tuple[int, list[Hypothesis]]] = []

        def keep(index: int, hypotheses: list[Hypothesis]) -> None:
            done.append((index, hypotheses))
            report()

        for start in range(0, len(order), size):
            check_stop()
            own = order[start : start + size][number::parts]
            texts = [
                (i, *self._tasks(sentences[i], prefixes[i], first + i)) for i in own
            ]
            # Longest first, by tokens; the number of characters is an estimate.
            texts.sort(key=lambda text: -max([0, *(len(t.source) for t in text[1])]))
            for i, tasks, sizes in texts:
                self._submit(tasks, sizes, functools.partial(keep, i))
            try:
                while self._engine.advance():
                    if parts == 1:
                        check_stop()
            except BaseException:
                self._engine.clear()
                raise
        return done

    def sentences(self, text: str) -> list[str]:
        """Split a text into what is translated by itself, as the options say."""
        tag, lines = self._lines(text)
        return [tag + sentence for line in lines for sentence in line]

    def of_sentences(self) -> "Translator":
        """Return this translator for texts that it does not split into sentences."""
        translator = copy.copy(self)
        translator._language = None
        return translator

    @property
    def has_attention(self) -> bool:
        """Whether the first member has attention to show."""
        return self._forced.has_attention(self.params[0])

    def require_fit(self, sources: Sequence[Side], targets: Sequence[Side]) -> None:
        """Raise InputError for a pair that `attention` and `score` cannot take."""
        self._forced.pairs(sources, targets)

    def attention(self, source: Side, target: Side) -> Attention:
        """Return the attention maps of the first member for one pair.

        A side is a text, or pieces of one part. Raises InputError for several parts.
        """
        parts = self.attention_of_parts(source, target)
        if len(parts) > 1:
            raise InputError(
                f"the pair has {len(parts)} parts, and attention is that of one; call "
                "attention_of_parts"
            )
        return parts[0]

    def attention_of_parts(self, source: Side, target: Side) -> list[Attention]:
        """Return the attention maps of each part of a hypothesis, given as pieces."""
        return self._forced.attention(self.params[0], source, target)

    def score(
        self, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[PairScore]:
        """Score given translations, token by token, with the first member.

        A side is a text, which is tokenised, or the pieces of a `Hypothesis`, which has
        its log-probability again. Raises InputError for pieces that do not fit.
        """
        return self._forced.score(self.params[0], sources, targets)

    def _lines(self, text: str) -> tuple[str, list[list[str]]]:
        tag, lines = lines_of(text, self.tokenizer, self._language)
        if self.tags and not tag and not self.options.tag and any(map(any, lines)):
            warn_of_no_tag(tuple(self.tags))
        return tag or self.options.tag, lines

    def _tasks(
        self, text: str, prefix: str, number: int
    ) -> tuple[list[Task], list[int]]:
        """The tasks of a text's parts, and how many each of its lines has."""
        options, tasks = self.options, []
        tag, lines = self._lines(text)

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return self.tokenizer.encode([each and tag + each for each in texts])

        how = {"longest": self.longest, "policy": options.long_lines}
        how["line"] = number + 1
        parts = [
            [p for each in line for p in parts_of(each, encode, **how)]
            for line in lines
        ]
        begin = self.tokenizer.encode_target([prefix])[0][:-1] if prefix else []
        for part, ids in enumerate(itertools.chain.from_iterable(parts)):
            limit = max(len(ids) + options.extra_length, len(begin) + 1)
            limit = min(limit, self._positions or limit)
            least = min(options.min_length, limit)
            seed = options.seed * 1_000_003 + number + part * SEEDS_APART
            tasks.append(Task(ids, limit, least, begin[: limit - 1], seed))
            begin = []  # the first part alone has the prefix
        return tasks, list(map(len, parts))

    def _submit(
        self,
        tasks: Sequence[Task],
        sizes: Sequence[int],
        done: Callable[[list[Hypothesis]], None],
    ) -> None:
        """Submit the tasks of one text; pass its hypotheses to `done`."""
        found: list[list[Hypothesis] | None] = [None] * len(tasks)
        if not tasks:
            done(joined([], sizes))

        def keep(part: int, result: SearchResult) -> None:
            found[part] = self._hypotheses(tasks[part].source, result)
            if None not in found:
                done(self._distinct(joined(found, sizes)))

        for part, task in enumerate(tasks):
            self._engine.submit(task._replace(done=functools.partial(keep, part)))

    def _hypotheses(self, source: list[int], found: SearchResult) -> list[Hypothesis]:
        rows = zip(*(leaf.tolist() for leaf in found), strict=True)
        source_names, names = self._names
        hypotheses = [
            Hypothesis(
                self.tokenizer.decode(tokens), score, log_probability, length,
                [source_names[i] for i in source], [names[i] for i in tokens[:length]],
            )
            for tokens, length, score, log_probability in rows
            if length
        ]  # fmt: skip
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        if self._choose is not None:
            hypotheses = self._choose(hypotheses)
        return self._distinct(hypotheses)[: self.options.n_best]

    def _distinct(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Keep the first hypothesis of each text; samples may repeat a text."""
        if self.options.is_sampling:
            return hypotheses
        found: dict[str, Hypothesis] = {}
        for each in hypotheses:
            found.setdefault(each.text, each)
        return list(found.values())
