"""A trained run from Python, in a few lines.

import jaxformer

translator = jaxformer.Translator("runs/wmt")
translator("A dog runs.")                      # "Ein Hund rennt."
translator(["A dog runs.", "It is late."])     # a list of two
translator.translate(["A dog runs."])          # with scores: lists of Hypothesis

view = jaxformer.attention_view(translator, "A dog runs.")
view.lines(layer=2, heads=[1, 2])              # a chart, in a notebook
view.save("attention.html")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.commands.options import FLAGS, Options
from jaxformer.commands.runs import open_translator
from jaxformer.decoding import translate
from jaxformer.errors import InputError

if TYPE_CHECKING:
    from jaxformer.reports.attention import AttentionView


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


def attention_view(
    translator: translate.Translator,
    sources: str | Sequence[str],
    targets: str | Sequence[str] | None = None,
) -> "AttentionView":
    """Look at where each head looks: charts, pictures and a page.

    Sentences without `targets` are translated first; a translator opened with n_best=4
    shows four candidates of each. Raises InputError if jaxformer[report] is not
    installed, for no or too many sentences, and for what is too long.
    """
    from jaxformer.reports.attention import AttentionView
    from jaxformer.reports.attention_data import attend

    sources = [sources] if isinstance(sources, str) else list(sources)
    if targets is not None:
        targets = [targets] if isinstance(targets, str) else list(targets)
        if len(targets) != len(sources):
            raise InputError(
                f"there are {len(sources)} sentences and {len(targets)} translations; "
                "give one translation for each sentence"
            )
    return AttentionView(attend(translator, sources, targets))
