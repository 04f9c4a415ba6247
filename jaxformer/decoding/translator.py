"""Translate sentences: the search of section 6.1 around a trained model."""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import jax

from jaxformer.decoding import parts
from jaxformer.decoding.engine import Task
from jaxformer.decoding.forced import Attention, PairScore, Side, TeacherForcing
from jaxformer.decoding.model_search import ModelSearch
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.text_pipeline import (
    NumberedText,
    OfParts,
    TextPipeline,
    numbered,
)
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.system.errors import InputError
from jaxformer.tokens import AnyTokenizer


class Search(Protocol):
    """What finds translations: a `ModelSearch`, or that of an export."""

    positions: int | None  # that a source or a translation may have; None: any number
    params: Sequence[Parameters]  # of an ensemble, mostly one; of an export none
    forcing: TeacherForcing | None  # an export has none

    def run(self, tasks: Sequence[Task], check_stop: Callable[[], None]) -> None:
        """Pass the result of each task to its `done`; `check_stop` may raise."""

    def release(self) -> None:
        """Drop all arrays on the devices; `params` must be set before the next call."""

    def identity(self) -> dict[str, object]:
        """Return what tells these parameters from others, as JSON can hold it."""


class Translator:
    """A search with a tokeniser, ready to translate.

    It has a text pipeline, `text`, and a `search`. `language`, `choose` and `needs_tag`
    are as for `TextPipeline`. Not thread safe.
    """

    def __init__(
        self,
        search: Search,
        tokenizer: AnyTokenizer,
        *,
        language: str,
        options: TranslateOptions,
        choose: parts.Choose | None = None,
        needs_tag: bool = True,
    ) -> None:
        self.search, self.tokenizer, self.options = search, tokenizer, options
        self.text = TextPipeline(
            tokenizer,
            options,
            language=language,
            positions=search.positions or math.inf,
            choose=choose,
            needs_tag=needs_tag,
        )

    @classmethod
    def of_models(
        cls,
        models: Sequence[Model],
        params: Sequence[Parameters],
        tokenizer: AnyTokenizer,
        *,
        language: str,
        options: TranslateOptions,
        rows: jax.sharding.NamedSharding,
        searches: int = 1,
        choose: parts.Choose | None = None,
        needs_tag: bool = True,
    ) -> "Translator":
        """Make the translator of a model or an ensemble; see `ModelSearch`."""
        own = search_options(options, choose)
        how = {"rows": rows, "searches": searches}
        search = ModelSearch(models, params, tokenizer, own, **how)
        how = {"language": language, "choose": choose, "needs_tag": needs_tag}
        return cls(search, tokenizer, options=options, **how)

    @property
    def params(self) -> Sequence[Parameters]:
        """The members' parameters; they may be replaced between two calls."""
        return self.search.params

    @params.setter
    def params(self, params: Sequence[Parameters]) -> None:
        self.search.params = params

    @property
    def longest(self) -> int | None:
        """The tokens of the longest source, end included; None: there is no limit."""
        return self.text.longest

    def release(self) -> None:
        """Drop all arrays on the devices; `params` must be set before the next call."""
        self.search.release()

    def __call__(self, sentences: str | Sequence[str]) -> str | list[str]:
        """Return the best translation of a text, or of each of several."""
        if isinstance(sentences, str):
            return self([sentences])[0]
        return parts.best_texts(self.translate(sentences))

    def translate(
        self,
        sentences: str | Sequence[str],
        *,
        prefixes: str | Sequence[str] | None = None,
        phrases: Sequence[str] | Sequence[Sequence[str]] | None = None,
        first: int = 0,
    ) -> list[parts.Hypothesis] | list[list[parts.Hypothesis]]:
        """Return the n_best hypotheses of a text, or of each of several.

        See `jaxformer.Translator.translate`; `first` is the number of earlier texts.
        """
        if isinstance(sentences, str):
            given = {"prefixes": prefixes, "phrases": phrases}
            given = {k: None if v is None else [v] for k, v in given.items()}
            return self.translate([sentences], **given)[0]
        found = self.translate_texts(numbered(sentences, prefixes, phrases, first))
        return parts.warn_of_copies([hypotheses for _, hypotheses in sorted(found)])

    def translate_texts(
        self,
        lines: Sequence[NumberedText],
        check_stop: Callable[[], None] = lambda: None,
        report: Callable[[], object] = lambda: None,
    ) -> list[tuple[int, list[parts.Hypothesis]]]:
        """Translate texts; return their numbers and hypotheses, in any order.

        `check_stop` may raise to end the work. `report` is called after each line, in
        any thread.
        """
        found: dict[int, OfParts] = {}

        def keep(number: int, hypotheses: OfParts) -> None:
            found[number] = hypotheses
            report()

        # Longest first, by tokens and then by characters: refills fit the shape in use.
        lines = sorted(lines, key=lambda line: -len(line.text))
        texts = [(line.number, self.text.tasks(*line)) for line in lines]
        texts.sort(key=lambda text: -text[1].longest)
        tasks: list[Task] = []
        for number, text in texts:
            done = functools.partial(keep, number)
            tasks += self.text.reporting(text.tasks, done)
        self.search.run(tasks, check_stop)
        every = [found[number] for number, _ in texts]
        results = self.text.results([text for _, text in texts], every)
        own = zip(texts, results, strict=True)
        return [(number, each.hypotheses) for (number, _), each in own]

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
        forcing = self.search.forcing
        return forcing is not None and forcing.has_attention(self.params[0])

    @property
    def _forcing(self) -> TeacherForcing:
        if self.search.forcing is None:
            raise InputError(
                "an export has no attention, and no scores of given translations; use "
                "the run that it was made from"
            )
        return self.search.forcing

    def score(
        self, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[PairScore]:
        """Score given translations, token by token.

        The pieces of a `Hypothesis` have its log-probability again. Raises InputError
        for pieces that do not fit.
        """
        sources = [*map(self._tagged, sources)]
        found = self._forcing.score(self.params[0], sources, targets)
        parts.require_numbers([each.log_probability for each in found])
        return found

    def require_fit(self, sources: Sequence[Side], targets: Sequence[Side]) -> None:
        """Raise InputError for a pair that `attention` and `score` cannot take."""
        self._forcing.pairs([*map(self._tagged, sources)], targets)

    def attention(self, source: Side, target: Side) -> Attention:
        """Return the attention maps of one pair. Raises InputError for several parts.

        See `attention_of_parts`.
        """
        found = self.attention_of_parts(source, target)
        if len(found) > 1:
            raise InputError(
                f"the pair has {len(found)} parts, and attention is that of one; call "
                "attention_of_parts"
            )
        return found[0]

    def attention_of_parts(self, source: Side, target: Side) -> list[Attention]:
        """Return the attention maps of each part of a pair."""
        return self._forcing.attention(self.params[0], self._tagged(source), target)

    def _tagged(self, side: Side) -> Side:
        return self.text.tagged(side) if isinstance(side, str) else side


def search_options(
    options: TranslateOptions, choose: parts.Choose | None
) -> TranslateOptions:
    """Return the options of a search: `choose` chooses among the whole beam."""
    return replace(options, n_best=options.beam_size) if choose else options
