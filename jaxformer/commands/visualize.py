"""--mode=visualize: attention as a page to open, or as a picture for a paper.

Sentences are read from standard input or --source and translated first; with
--reference the given translations are shown. A page takes up to fifty sentences, a
picture one. An existing --output is replaced.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.evaluate import read_pairs_for
from jaxformer.commands.options import Options
from jaxformer.commands.runs import open_run, open_translator
from jaxformer.commands.translate import lines_of
from jaxformer.data.sources import read_lines
from jaxformer.errors import InputError
from jaxformer.reports import page
from jaxformer.reports.attention import ENDINGS, AttentionView
from jaxformer.reports.attention_data import attend
from jaxformer.workdir import direction

ALTERNATIVES = 4  # of each sentence, if the beam is that wide


def run(options: Options) -> dict | None:
    """Translate, and write --output, by default attention.html in the workdir.

    Of several processes the first one works. Raises InputError for layers and heads
    that do not exist, sentences that are too long or too many, and an --output that
    cannot be written.
    """
    start = time.monotonic()
    output = Path(options.output or options.workdir / "attention.html")
    page.require_output(output, ENDINGS)
    numbers = options.heads.split(",") if options.heads is not None else []
    if not all(number.isdecimal() for number in numbers):
        raise InputError(f"--heads={options.heads} is no list such as --heads=1,3")
    opened = open_run(options)
    n_best = min(ALTERNATIVES, opened.config["decoding"]["beam_size"])
    search = {"n_best": n_best, **options.search}
    _, translator = open_translator(replace(options, search=search))
    if not processes.is_first():  # opening needs all of them
        return None
    targets = None
    if options.reference is not None:
        sources, targets = read_pairs_for(opened, options)
    elif options.source is not None:
        sources = list(read_lines(Path(options.source)))
    else:
        sources = list(lines_of(sys.stdin.buffer))
    title = f"Attention of {opened.workdir.path.name}, {direction(opened.config)}"
    view = AttentionView(attend(translator, sources, targets), title)
    if output.suffix != ".html" and len(view.viewed) > 1:
        raise InputError(f"{output} shows one sentence; give one, or a page (.html)")
    choice = {"view": options.view, "attention": options.attention}
    view.save(output, **choice, layer=options.layer, heads=[*map(int, numbers)] or None)
    return {
        "output": str(output),
        "sentences": len(view.viewed),
        "bytes": output.stat().st_size,
        "seconds": round(time.monotonic() - start, 1),
    }
