"""Translate in several processes, each its share of the sentences."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jaxformer import processes
from jaxformer.decoding.translate import Hypothesis, Translator


def translate_all(
    translator: Translator,
    sentences: Sequence[str],
    check_stop: Callable[[], None] = lambda: None,
    **details: Any,
) -> list[list[Hypothesis]]:
    """Translate sentences; every process gets all hypotheses, in the order given.

    `check_stop` is called equally often in all processes, and may raise to end the
    work; `details` are further arguments of `Translator.translate_part`.
    """
    part = (processes.index(), processes.count())
    own = translator.translate_part(sentences, part, check_stop, **details)
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    for index, hypotheses in itertools.chain.from_iterable(processes.gather(own)):
        found[index] = [Hypothesis(*hypothesis) for hypothesis in hypotheses]
    return found


def texts(found: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """The best translation of each sentence."""
    return [hypotheses[0].text for hypotheses in found]
