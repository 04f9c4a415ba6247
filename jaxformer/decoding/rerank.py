"""Rerank the hypotheses of a search by further models.

The score of a translation y of a source x becomes

    log P(y|x) / p(|y|) + sum of weight * log P(y|x) / p(|y|) of each forward model
                        + sum of weight * log P(x|y) / p(|x|) of each reverse model

where p is the length penalty of the search, and lengths are counted in the tokens of
each model, end of sentence included. A reverse model makes this the noisy channel
reranking of Ng et al. (2019), without a language model; length_penalty=power and
alpha=1 divide each log P by its length, as Yee et al. (2019) do.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.decoding.forced import TeacherForcing
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.parts import Hypothesis, distinct_texts, split_tag
from jaxformer.decoding.search import length_penalty
from jaxformer.models.sequence_model import Parameters
from jaxformer.system.errors import NotFiniteError
from jaxformer.tokens import AnyTokenizer

logger = logging.getLogger(__name__)


class Reranker(NamedTuple):
    """A model that scores texts with its own tokeniser."""

    name: str
    forcing: TeacherForcing
    params: Parameters
    tokenizer: AnyTokenizer
    weight: float
    is_reverse: bool  # it translates the translation into the source
    tag: str  # of its sources, or ""

    def scores(
        self, pairs: Sequence[tuple[str, str, str]], options: SearchOptions
    ) -> np.ndarray:
        """Return log P over the length penalty: float64 [pairs].

        A pair is the source's tag or "", its text, and the translation. NaN for a pair
        of more pieces than the model can hold. Raises NotFiniteError if a
        log P is not finite, as those of a diverged model are.
        """
        sources, targets = [], []
        for tag, source, target in pairs:
            if self.is_reverse:
                source, target = target, source
            if self.is_reverse or not tag or self.tokenizer.language_code(tag) != tag:
                tag = self.tag
            sources.append(f"{tag} {source}".strip())
            targets.append(target)
        fits = self.forcing.fits(sources, targets)
        scored = [
            [text for text, fit in zip(side, fits, strict=True) if fit]
            for side in (sources, targets)
        ]
        found = self.forcing.score(self.params, *scored)
        lengths = np.array([len(each.pieces) for each in found], np.int32)
        total = np.array([each.log_probability for each in found], np.float64)
        if not np.isfinite(total).all():
            raise NotFiniteError(
                f"{self.name} gives probabilities that are not numbers; use another "
                "checkpoint"
            )
        scores = np.full(len(pairs), np.nan)
        scores[fits] = total / np.asarray(length_penalty(lengths, options))
        return scores


def rerank(
    sources: Sequence[str],
    found: Sequence[Sequence[Hypothesis]],
    *,
    models: Sequence[Reranker],
    language_code: Callable[[str], str],
    options: SearchOptions,
) -> list[list[Hypothesis]]:
    """Sort the hypotheses of each source by their new scores, the largest first.

    All are scored together. Equal texts are kept once. A model leaves out a sentence
    that it cannot hold with all its hypotheses, and warns. `language_code` returns the
    tag of a source or "".
    """
    found = [distinct_texts(hypotheses) for hypotheses in found]
    pairs = []
    for source, hypotheses in zip(sources, found, strict=True):
        tag, text = split_tag(source, language_code)
        pairs += [(tag, text, each.text) for each in hypotheses]
    scores = np.array([each.score for hypotheses in found for each in hypotheses])
    sentence = np.repeat(np.arange(len(found)), [len(each) for each in found])
    for model in models:
        added = model.scores(pairs, options)
        is_left_out = np.isin(sentence, sentence[np.isnan(added)])
        if is_left_out.any():
            logger.warning(
                "%s has no positions for %s of %s sentences and leaves them out",
                model.name, f"{np.unique(sentence[is_left_out]).size:,}",
                f"{len(found):,}",
            )  # fmt: skip
        scores = scores + model.weight * np.where(is_left_out, 0.0, added)
    left = iter(scores.tolist())
    return [
        sorted(
            [each._replace(score=next(left)) for each in hypotheses],
            key=lambda hypothesis: -hypothesis.score,
        )
        for hypotheses in found
    ]
