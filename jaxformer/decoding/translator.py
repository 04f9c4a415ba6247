"""Translate sentences: the search of section 6.1 around a trained model."""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import jax

from jaxformer.decoding.engine import Engine
from jaxformer.decoding.forced import Attention, PairScore, Side, TeacherForcing
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.parts import (
    Choose,
    Hypothesis,
    best_texts,
    one_each,
    require_numbers,
)
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.side_by_side import Searches
from jaxformer.decoding.tasks import Task
from jaxformer.decoding.text_pipeline import OfParts, TextPipeline
from jaxformer.models.sequence_model import Model
from jaxformer.system import processes
from jaxformer.system.errors import InputError
from jaxformer.system.progress import progress
from jaxformer.tokens import AnyTokenizer

ROUND = 256  # sentences of each process between synchronised calls of `check_stop`


class Translator:
    """A model, or an ensemble, with its tokeniser, ready to translate.

    It has a text pipeline, `text`, a search, `searches`, and the scorer of given
    translations, `forcing`. `models` and `params` are the members of an ensemble,
    mostly one. `language`, `choose` and `needs_tag` are as for `TextPipeline`. `rows`
    shards the rows of a batch over devices of this process; None: one device. Up to
    `searches` searches run at once, each in a thread; the sentences are divided among
    them. Not thread safe.
    """

    def __init__(
        self,
        models: Sequence[Model],
        params: Sequence[Any],
        tokenizer: AnyTokenizer,
        *,
        language: str,
        options: TranslateOptions,
        rows: jax.sharding.NamedSharding | None,
        searches: int = 1,
        choose: Choose | None = None,
        needs_tag: bool = True,
    ) -> None:
        self.models, self.tokenizer, self.options = models, tokenizer, options
        positions = [model.longest for model in models if model.longest]
        self.text = TextPipeline(
            tokenizer,
            options,
            language=language,
            positions=min(positions, default=math.inf),
            choose=choose,
            needs_tag=needs_tag,
        )
        scorer, tokens = Scorer(models), options.batch_tokens
        self._weights = jax.jit(scorer.weights)
        if choose:  # among the whole beam
            options = dataclasses.replace(options, n_best=options.beam_size)
        make = functools.partial(Engine, scorer, options, rows=rows)
        self.searches = Searches(make, tokens, searches, options.beam_size)
        self.forcing = TeacherForcing(models[0], tokenizer, batch_tokens=tokens)
        self.params = params

    @property
    def params(self) -> Sequence[Any]:
        """The members' parameters; they may be replaced between two calls."""
        return self._params

    @params.setter
    def params(self, params: Sequence[Any]) -> None:
        self._params = params
        self.searches.set_weights(self._weights(params))

    @property
    def longest(self) -> int | None:
        """The tokens of the longest source, end included; None: there is no limit."""
        return self.text.longest

    def release(self) -> None:
        """Drop all arrays on the devices; `params` must be set before the next call."""
        self._params = None
        self.searches.release()

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
        *,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
        first: int = 0,
        report: Callable[[], object] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate sentences in all processes, each its share.

        Returns all hypotheses in every process. The arguments are those of
        `translate_part`; without `report`, process 0 reports its progress.
        """
        part = (processes.index(), processes.count())
        with ExitStack() as held:
            if report is None:
                total = len(sentences[:: part[1]])
                bar = progress("translating", total, unit="sentences")
                report = held.enter_context(bar).update
            with processes.sharing_mistakes():
                own = self.translate_part(
                    sentences, part, check_stop, prefixes=prefixes, phrases=phrases,
                    first=first, report=report,
                )  # fmt: skip
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
        found: dict[int, OfParts] = {}

        def keep(index: int, hypotheses: OfParts) -> None:
            found[index] = hypotheses
            report()

        for start in range(0, len(order), size):
            check_stop()
            own = order[start : start + size][number::parts]
            texts = [
                (i, self.text.tasks(sentences[i], prefixes[i], phrases[i], first + i))
                for i in own
            ]
            # Longest first, by tokens; the number of characters is an estimate.
            texts.sort(key=lambda text: -max([0, *(len(t.source) for t in text[1][0])]))
            given: list[Task] = []
            for i, text in texts:
                given += self.text.reporting(text.tasks, functools.partial(keep, i))
            self.searches.run(given, check_stop if parts == 1 else lambda: None)
            complete = [(text, found.pop(i)) for i, text in texts]
            indices = (i for i, _ in texts)
            done += zip(indices, self.text.joined(complete), strict=True)
        return done

    def of_sentences(self) -> "Translator":
        """Return this translator for texts that it does not split into sentences."""
        translator = copy.copy(self)
        translator.text = self.text.of_sentences()
        return translator

    # Of given pairs, with the first member of an ensemble. A side is a text, which is
    # tokenised, or the pieces of a `Hypothesis`. A source gets the tag of the options.

    @property
    def has_attention(self) -> bool:
        """Whether the model has attention to show."""
        return self.forcing.has_attention(self.params[0])

    def score(
        self, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[PairScore]:
        """Score given translations, token by token.

        The pieces of a `Hypothesis` have its log-probability again. Raises InputError
        for pieces that do not fit.
        """
        sources = [*map(self._tagged, sources)]
        found = self.forcing.score(self.params[0], sources, targets)
        require_numbers([each.log_probability for each in found])
        return found

    def require_fit(self, sources: Sequence[Side], targets: Sequence[Side]) -> None:
        """Raise InputError for a pair that `attention` and `score` cannot take."""
        self.forcing.pairs([*map(self._tagged, sources)], targets)

    def attention(self, source: Side, target: Side) -> Attention:
        """Return the attention maps of one pair. Raises InputError for several parts.

        See `attention_of_parts`.
        """
        parts = self.attention_of_parts(source, target)
        if len(parts) > 1:
            raise InputError(
                f"the pair has {len(parts)} parts, and attention is that of one; call "
                "attention_of_parts"
            )
        return parts[0]

    def attention_of_parts(self, source: Side, target: Side) -> list[Attention]:
        """Return the attention maps of each part of a pair."""
        return self.forcing.attention(self.params[0], self._tagged(source), target)

    def _tagged(self, side: Side) -> Side:
        return self.text.tagged(side) if isinstance(side, str) else side
