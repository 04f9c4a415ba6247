"""From the lines of a text to the ids that are searched, and back to a text.

A text is split into lines or sentences, these into parts that the model holds, and each
part is a `Task`. The hypotheses of the parts are chosen, and joined to those of the
text.
"""

import copy
import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jaxformer.decoding.engine import Task
from jaxformer.decoding.glossary import Glossary
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.parts import (
    Choose,
    Hypothesis,
    distinct_texts,
    hypotheses_of,
    joined,
    lines_of,
    one_each,
    parts_of,
    tagged,
    warn_of_no_tag,
)
from jaxformer.decoding.phrases import add_terms, encode_phrases
from jaxformer.decoding.search import SearchResult
from jaxformer.system.errors import InputError
from jaxformer.tokens import UNK, AnyTokenizer

logger = logging.getLogger(__name__)

# Between the seeds of two parts: odd, and about 2^32 over the golden ratio, so that the
# parts of near lines do not share seeds.
SEEDS_APART = 0x9E3779B1

OfParts = list[list[Hypothesis]]  # the hypotheses of each part of a text


class NumberedText(NamedTuple):
    """A text to translate."""

    text: str
    prefix: str  # the forced beginning of its translation
    phrases: Sequence[str]  # that its translation contains
    number: int  # from 0, for messages and seeds of samples


def numbered(
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    phrases: Sequence[Sequence[str]] | None,
    first: int = 0,
) -> list[NumberedText]:
    """Number texts from `first`.

    Raises InputError unless there is one prefix, and one list of phrases, for each.
    """
    prefixes = one_each("prefixes", prefixes, len(texts), default="")
    phrases = one_each("phrases", phrases, len(texts), default=())
    numbers = range(first, first + len(texts))
    return [*map(NumberedText, texts, prefixes, phrases, numbers)]


class Direction(NamedTuple):
    """A direction of a model of several languages."""

    language: str  # of the source, such as "en"
    tag: str  # that begins each source, or ""
    target_tag: str  # that begins each target, or ""


class TextTasks(NamedTuple):
    """The parts of a text: tasks, and parts that are copied without a search."""

    tasks: list[Task]
    sources: list[str]  # of all parts, their tag included
    sizes: list[int]  # the number of parts of each line
    copies: Mapping[int, list[Hypothesis]]  # by the place among all parts

    @property
    def longest(self) -> int:
        """The source tokens of the longest part."""
        return max([0, *(len(task.source) for task in self.tasks)])

    @property
    def has_phrases(self) -> bool:
        """Whether a part has phrases, which are given or of a glossary."""
        return any(task.phrases for task in self.tasks)


class TextResult(NamedTuple):
    """The hypotheses of a text, and for each line the source and those of its parts."""

    hypotheses: list[Hypothesis]
    lines: list[list[tuple[str, list[Hypothesis]]]]


class TextPipeline:
    """Turns texts into tasks, and what a search finds into hypotheses of the texts.

    `language` is that of the source, such as "en". `positions` bounds the tokens of a
    source and of a translation: those that a model can hold, or math.inf. `choose`
    takes the source texts of all parts and the hypotheses of each, and returns the
    hypotheses in a new order. `needs_tag` warns of a text without one of the
    vocabulary's tags. `glossary` finds the terms of a part and their translations.
    Raises InputError for an unknown option `tag`, and for samples with a glossary.
    """

    def __init__(
        self,
        tokenizer: AnyTokenizer,
        options: TranslateOptions,
        *,
        language: str,
        positions: float,
        choose: Choose | None,
        needs_tag: bool,
        glossary: Glossary | None = None,
    ) -> None:
        if glossary and options.is_sampling:
            raise InputError("samples have no glossary; leave out the temperature")
        self._glossary = glossary
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
        self._most = positions  # tokens of a translation
        limits = (options.max_source_length or math.inf, positions)
        longest = min(limits)
        self.longest = None if longest == math.inf else int(longest)  # of a source

    def of_sentences(self) -> "TextPipeline":
        """Return this pipeline for texts that it does not split into sentences."""
        pipeline = copy.copy(self)
        pipeline._language = None
        return pipeline

    @property
    def has_glossary(self) -> bool:
        """Whether texts may get phrases that their callers do not give."""
        return self._glossary is not None

    def of_direction(self, direction: Direction) -> "TextPipeline":
        """Return this pipeline for another direction; its callers add the tag, if any.

        Results of its tasks may be read by this pipeline.
        """
        pipeline = copy.copy(self)
        pipeline.options = dataclasses.replace(self.options, tag="")
        pipeline._needs_tag = False
        pipeline.tokenizer = self.tokenizer.for_target(direction.target_tag)
        pipeline._language = self._language and direction.language
        return pipeline

    def limited(self) -> tuple["TextPipeline", int]:
        """Return this pipeline for translations that a longest source may have.

        Also returns the tokens of such a translation. There must be a longest source.
        """
        pipeline = copy.copy(self)
        pipeline._most = min(self.longest + self.options.extra_length, self._most)
        return pipeline, pipeline._most

    def sentences(self, text: str) -> list[str]:
        """Split a text into what is translated by itself, as the options say."""
        lines = self._lines(text)
        return [each and tag + each for tag, line in lines for each in line]

    def tagged(self, text: str) -> str:
        """Begin a source without a tag with that of the options."""
        return tagged(text, self.options.tag, self.tokenizer.language_code)

    def _lines(self, text: str) -> list[tuple[str, list[str]]]:
        lines = lines_of(text, self.tokenizer, self._language)
        if self.tags and self._needs_tag and any(any(x) for tag, x in lines if not tag):
            warn_of_no_tag(tuple(self.tags))
        return [(tag or self.options.tag, line) for tag, line in lines]

    def tasks(
        self, text: str, prefix: str, phrases: Sequence[str], number: int
    ) -> TextTasks:
        """Tokenise a text; the arguments are those of `NumberedText`.

        Logs which terms of the glossary cannot be in its translation. Raises InputError
        if the prefix is too long, or the text, if the options refuse long ones, and for
        phrases that cannot be in its translation.
        """
        options, tasks = self.options, []
        how = {"longest": self.longest, "line": number + 1}
        how["policy"] = options.long_lines
        parts = [
            [
                (tag, *part)
                for each in line
                for part in parts_of(
                    each, partial(self._encode, tag), tags=bool(tag), **how
                )
            ]
            for tag, line in self._lines(text)
        ]
        given = [*self.tokenizer.target_start]
        begin = self.tokenizer.encode_target([prefix])[0][:-1] if prefix else given
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
        flat = list(itertools.chain.from_iterable(parts))
        given_phrases = encode_phrases(  # of the only part
            phrases, self._encode_phrase, line=number + 1, parts=len(flat),
            prefix=begin, most=self._most,
        )  # fmt: skip
        copies, left_out = {}, []
        for part, (tag, own, ids) in enumerate(flat):
            terms = self._glossary.find(own) if self._glossary else []
            # Which part of `own` has the terms?
            if terms and ids != self._encode(tag, [own])[0]:
                left_out += [f"{forms[0]!r} (in a text that is cut)" for forms in terms]
                terms = []
            found, needed, faults = add_terms(
                given_phrases, terms, self._encode_phrase, prefix=begin, most=self._most
            )
            left_out += faults
            is_unknown = self.tokenizer.is_unknown  # also of the whole word of a part
            is_free = begin == given and not found
            if is_free and is_unknown(ids) and is_unknown(*self._encode(tag, [own])):
                copies[part] = [Hypothesis(own, 0.0, 0.0, 0)]
                continue
            limit = max(len(ids) + options.extra_length, needed, options.min_length)
            limit = min(limit, self._most)
            least = min(options.min_length, limit)
            seed = options.seed * 1_000_003 + number + part * SEEDS_APART
            how = {"phrases": found, "text": tag + own, "unscored": len(given)}
            tasks.append(Task(ids, limit, least, begin, seed=seed, **how))
            begin = given  # the first part alone has the prefix
        if left_out:
            listed = ", ".join(dict.fromkeys(left_out))
            logger.warning("line %d: terms that are left out: %s", number + 1, listed)
        sources = [tag + own for tag, own, _ in flat]
        return TextTasks(tasks, sources, list(map(len, parts)), copies)

    def _encode(self, tag: str, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode([each and tag + each for each in texts])

    def _encode_phrase(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self.tokenizer.encode_target(texts)
        return [ids[len(self.tokenizer.target_start) :] for ids in rows]

    def reporting(
        self, tasks: Sequence[Task], done: Callable[[OfParts], None]
    ) -> Iterator[Task]:
        """Let the tasks of one text pass the hypotheses of its parts to `done`."""
        found: list[list[Hypothesis] | None] = [None] * len(tasks)
        ended = itertools.count(1)  # several threads may finish one text
        if not tasks:
            done([])

        def keep(part: int, result: SearchResult) -> None:
            own = tasks[part].source, tasks[part].unscored
            hypotheses = hypotheses_of(self.tokenizer, self._names, *own, result)
            found[part] = self._distinct(hypotheses)
            if next(ended) == len(tasks):
                done(found)

        for part, task in enumerate(tasks):
            yield task._replace(done=partial(keep, part))

    def results(
        self, texts: Sequence[TextTasks], found: Sequence[OfParts]
    ) -> list[TextResult]:
        """Choose among the hypotheses of each part; join those of each text."""
        parts = [hypotheses for of_text in found for hypotheses in of_text]
        if self._choose:
            sources = [task.text for text in texts for task in text.tasks]
            parts = self._choose(sources, parts)
        left = iter([each[: self.options.n_best] for each in parts])
        results = []
        for text in texts:
            places = range(sum(text.sizes))
            own = [text.copies.get(place) or next(left) for place in places]
            sentences = zip(text.sources, own, strict=True)
            lines = [list(itertools.islice(sentences, size)) for size in text.sizes]
            results.append(TextResult(self._distinct(joined(own, text.sizes)), lines))
        return results

    def _distinct(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Keep the first hypothesis of each text; samples may repeat a text."""
        return hypotheses if self.options.is_sampling else distinct_texts(hypotheses)
