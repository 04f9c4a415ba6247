"""Accuracy by phenomenon of grammar, on the built-in corpus."""

import logging
from collections.abc import Callable, Sequence

from jaxformer.config import DataConfig
from jaxformer.data import grammar

logger = logging.getLogger(__name__)


def report_phenomena(
    data: DataConfig, translate: Callable[[Sequence[str]], list[str]]
) -> None:
    """Log the exact matches by phenomenon, on text that was not trained on.

    Does nothing for any other corpus.
    """
    if data.corpus != "builtin:grammar" or data.direction != "en-de":
        return
    for split in ("test", "unseen"):
        pairs = list(grammar.generate(split, data.builtin_eval_pairs, data.seed))
        translations = translate([pair.source for pair in pairs])
        right = sum(p.target == t for p, t in zip(pairs, translations, strict=True))
        logger.info(
            "%s: %d of %d translations exactly right (%.1f %%)",
            split, right, len(pairs), 100 * right / len(pairs),
        )  # fmt: skip
        counts = grammar.accuracy_by_phenomenon(pairs, translations)
        for phenomenon, (correct, total) in sorted(counts.items()):
            logger.info(
                "  %-20s %5d of %5d (%.1f %%)",
                phenomenon, correct, total, 100 * correct / total,
            )  # fmt: skip
