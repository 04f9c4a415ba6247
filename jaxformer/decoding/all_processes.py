"""Translate in all processes, each its share of the lines."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.text_pipeline import NumberedText, numbered
from jaxformer.decoding.translator import Translator
from jaxformer.system import processes
from jaxformer.system.progress import progress

ROUND = 256  # lines of each process between synchronised calls of `check_stop`


def translate_all(
    translator: Translator,
    sentences: Sequence[str],
    check_stop: Callable[[], None] = lambda: None,
    *,
    prefixes: Sequence[str] | None = None,
    phrases: Sequence[Sequence[str]] | None = None,
    first: int = 0,
    report: Callable[[], object] | None = None,
) -> list[list[Hypothesis]]:
    """Translate sentences, and return all hypotheses in every process.

    `check_stop` is called equally often in every process, and may raise to end the
    work. `first` is the number of earlier lines. `report` is called after each sentence
    of this process, in any thread; None: process 0 reports its progress.
    """
    part = processes.index(), processes.count()
    with ExitStack() as held:
        if report is None:
            total = len(sentences[:: part[1]])
            bar = progress("translating", total, unit="sentences")
            report = held.enter_context(bar).update
        with processes.sharing_mistakes():
            lines = numbered(sentences, prefixes, phrases, first)
            own = translate_share(translator, lines, part, check_stop, report)
    found = sorted(itertools.chain.from_iterable(processes.gather(own)))
    return [[Hypothesis(*each) for each in hypotheses] for _, hypotheses in found]


def translate_share(
    translator: Translator,
    lines: Sequence[NumberedText],
    part: tuple[int, int],
    check_stop: Callable[[], None],
    report: Callable[[], object] = lambda: None,
) -> list[tuple[int, list[Hypothesis]]]:
    """Translate part (p, of) of the lines: their numbers and hypotheses."""
    number, parts = part
    if parts == 1:
        check_stop()
        return translator.translate_texts(lines, check_stop, report)
    # Longest first; the number of characters is an estimate of the tokens.
    lines = sorted(lines, key=lambda line: -len(line.text))
    found = []
    for start in range(0, len(lines), ROUND * parts):
        check_stop()
        own = lines[start : start + ROUND * parts][number::parts]
        found += translator.translate_texts(own, report=report)
    return found
