"""Translate sentences: the search of section 6.1 around a trained model."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from jaxformer.decoding import parts
from jaxformer.decoding.ctranslate2_search import POSITIONS, CTranslate2Search
from jaxformer.decoding.engine import Task, run_tasks
from jaxformer.decoding.forced import Attention, PairScore, Side, TeacherForcing
from jaxformer.decoding.glossary import Glossary
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.slots import Scorer, SlotPrograms
from jaxformer.decoding.text_pipeline import (
    NumberedText,
    OfParts,
    TextPipeline,
    numbered,
)
from jaxformer.models.sequence_model import Model, Parameters
from jaxformer.system.errors import InputError
from jaxformer.tokens import AnyTokenizer


class Translator:
    """A model, or an ensemble, with its tokeniser, ready to translate.

    It has a text pipeline, `text`, the `programs` of a search, and the scorer of given
    translations, `forcing`. `models` and `params` are the members of an ensemble,
    mostly one. `language`, `choose`, `needs_tag` and `glossary` are as for
    `TextPipeline`. `rows` shards the rows of a batch over devices of this process. Up
    to `searches` searches share the sentences, each in a thread of its own. A model in
    the folder `export`, of CTranslate2, searches in place of `models`: there are no
    `params`, `programs` and `forcing` then. Not thread safe.
    """

    def __init__(
        self,
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
        glossary: Glossary | None = None,
        export: Path | None = None,
    ) -> None:
        self.models, self.tokenizer, self.options = models, tokenizer, options
        positions = [model.longest for model in models if model.longest]
        positions += [POSITIONS] if export else []
        self.text = TextPipeline(
            tokenizer,
            options,
            language=language,
            positions=min(positions, default=math.inf),
            choose=choose,
            needs_tag=needs_tag,
            glossary=glossary,
        )
        if choose:  # among the whole beam
            options = dataclasses.replace(options, n_best=options.beam_size)
        self.export: CTranslate2Search | None = None
        self.forcing: TeacherForcing | None = None
        if export:
            self.export = CTranslate2Search(export, tokenizer, options, searches)
            self._run, self._params = self.export.run, ()
            return
        scorer, tokens = Scorer(models), options.batch_tokens
        self._weights = jax.jit(scorer.weights)
        self.programs = SlotPrograms(scorer, options, rows)
        sizes = {"batch_tokens": tokens, "searches": searches}
        self._run = functools.partial(run_tasks, self.programs, **sizes)
        self.forcing = TeacherForcing(models[0], tokenizer, batch_tokens=tokens)
        self.params = params

    @property
    def params(self) -> Sequence[Parameters]:
        """The members' parameters; they may be replaced between two calls."""
        return self._params

    @params.setter
    def params(self, params: Sequence[Parameters]) -> None:
        self._params, self.programs.weights = params, self._weights(params)

    @property
    def longest(self) -> int | None:
        """The tokens of the longest source, end included; None: there is no limit."""
        return self.text.longest

    def release(self) -> None:
        """Drop all arrays on the devices; `params` must be set before the next call."""
        self._params = self.programs.weights = None

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
        self._run(tasks, check_stop=check_stop)
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
        return not self.export and self.forcing.has_attention(self.params[0])

    @property
    def _scorer(self) -> TeacherForcing:
        if self.forcing is None:
            raise InputError(
                "an export has no attention, and no scores of given translations; use "
                "the run that it was made from"
            )
        return self.forcing

    def score(
        self, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[PairScore]:
        """Score given translations, token by token.

        The pieces of a `Hypothesis` have its log-probability again. Raises InputError
        for pieces that do not fit.
        """
        sources = [*map(self._tagged, sources)]
        found = self._scorer.score(self.params[0], sources, targets)
        parts.require_numbers([each.log_probability for each in found])
        return found

    def require_fit(self, sources: Sequence[Side], targets: Sequence[Side]) -> None:
        """Raise InputError for a pair that `attention` and `score` cannot take."""
        self._scorer.pairs([*map(self._tagged, sources)], targets)

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
        return self._scorer.attention(self.params[0], self._tagged(source), target)

    def _tagged(self, side: Side) -> Side:
        return self.text.tagged(side) if isinstance(side, str) else side
