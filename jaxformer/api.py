"""A trained run from Python, in a few lines.

import jaxformer

translator = jaxformer.Translator("runs/wmt")
translator("A dog runs.")                      # "Ein Hund rennt."
translator(["A dog runs.", "It is late."])     # a list of two
translator.translate(["A dog runs."])          # with scores: lists of Hypothesis
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.decoding import translate
from jaxformer.modes.options import FLAGS, Options
from jaxformer.modes.runs import open_translator


def Translator(
    workdir: str | Path,
    *,
    checkpoint: str | None = None,
    ensemble: Sequence[str | Path] = (),
    **settings: Any,
) -> translate.Translator:
    """Open the run in `workdir` for translation.

    `checkpoint` chooses parameters as the flag does; `ensemble` names workdirs of other
    models that vote. `settings` are the flags of decoding and search by their names:
    beam_size, alpha, batch_tokens, n_best, length_penalty, min_length, temperature,
    top_k, top_p, seed, no_repeat_ngram, max_source_length, long_lines. Raises
    InputError for what cannot be opened, TypeError for a setting that does not exist.
    """
    groups: dict[str, dict[str, Any]] = {}
    for group in ("decoding", "search", "wishes"):
        names = {flag.name for flag in FLAGS[group]}
        groups[group] = {k: v for k, v in settings.items() if k in names}
    unknown = settings.keys() - set().union(*groups.values())
    if unknown:
        raise TypeError(f"Translator has no setting {sorted(unknown)[0]!r}")
    options = Options(
        mode="translate",
        workdir=Path(workdir),
        checkpoint=checkpoint,
        ensemble=",".join(map(str, ensemble)) or None,
        **groups,
    )
    return open_translator(options)[1]
