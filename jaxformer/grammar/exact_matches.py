"""How many sentences of the grammar a model translates exactly, by phenomenon."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from jaxformer import grammar

logger = logging.getLogger(__name__)


def report_exact_matches(
    translate: Callable[[Sequence[str]], list[str]], *, pairs: int, seed: int, tag: str
) -> None:
    """Log the exact matches of `pairs` English sentences that were not trained on.

    Sources begin with `tag`, if it is not "".
    """
    for split in ("test", "unseen"):
        right, total = Counter(), Counter()
        found = list(grammar.generate(split, pairs, seed))
        translations = translate([f"{tag} {each.source}".strip() for each in found])
        for pair, translation in zip(found, translations, strict=True):
            names = ("", *pair.phenomena)  # "" counts all pairs
            total.update(names)
            right.update(names if translation == pair.target else ())
        for name, count in sorted(total.items()):
            line = f"  {name:<20} {right[name]:>5} of {count:>5}"
            if not name:
                line = f"{split}: {right[name]} of {count} translations exactly right"
            logger.info("%s (%.1f %%)", line, 100 * right[name] / count)
