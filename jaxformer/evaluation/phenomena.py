"""Accuracy by phenomenon of grammar, on the built-in corpus."""

import logging
from collections import Counter
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
        right, total = Counter(), Counter()
        pairs = list(grammar.generate(split, data.builtin_eval_pairs, data.seed))
        translations = translate([pair.source for pair in pairs])
        for pair, translation in zip(pairs, translations, strict=True):
            names = ("", *pair.phenomena)  # "" counts all pairs
            total.update(names)
            right.update(names if translation == pair.target else ())
        for name, count in sorted(total.items()):
            line = f"  {name:<20} {right[name]:>5} of {count:>5}"
            if not name:
                line = f"{split}: {right[name]} of {count} translations exactly right"
            logger.info("%s (%.1f %%)", line, 100 * right[name] / count)
