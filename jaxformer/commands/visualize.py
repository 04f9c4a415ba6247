"""--mode=visualize: where each head looks, as a page to open or a picture for a paper.

Sentences come from standard input or --source and are translated first; with
--reference the given translations are looked at. A page takes up to fifty sentences, a
picture one. What --output names is written over.
"""

import dataclasses
import logging
import sys
import time
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.evaluate import read_pairs_for
from jaxformer.commands.options import Options
from jaxformer.commands.runs import Run, open_run, open_translator
from jaxformer.commands.translate import lines_of
from jaxformer.data.sources import read_lines
from jaxformer.errors import InputError
from jaxformer.reports.attention import AttentionView, require_ending
from jaxformer.reports.attention_data import look
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)

ALTERNATIVES = 4  # of each sentence, unless --n_best or the beam's width says otherwise


def run(options: Options) -> dict | None:
    """Translate, look, and write --output, by default attention.html in the workdir.

    Of several processes the first one works. Raises InputError for layers and heads
    that there are not, sentences that are too long or too many, and an --output that
    cannot be written.
    """
    start = time.monotonic()
    output = Path(options.output or options.workdir / "attention.html")
    require_ending(output)
    run_ = open_run(options)
    heads = _heads(options.heads)
    is_page = output.suffix == ".html"
    _, translator = open_translator(_with_alternatives(options, run_, is_page))
    if not processes.is_first():  # opening needs all of them
        return None
    sources, targets = _read(run_, options)
    if not is_page and sum(bool(source.strip()) for source in sources) != 1:
        raise InputError(
            f"{output} is to show one sentence, and {len(sources)} lines were given; "
            "give one, or an --output called .html"
        )
    viewed = look(translator, sources, targets)
    title = f"Attention of {run_.workdir.path.name}, {direction(run_.config)}"
    AttentionView(viewed, title).save(
        output,
        view=options.view,
        attention=options.attention,
        layer=options.layer,
        heads=heads,
    )
    logger.info("%s is written", output)
    return {
        "output": str(output),
        "sentences": len(viewed),
        "bytes": output.stat().st_size,
        "seconds": round(time.monotonic() - start, 1),
    }


def _heads(given: str | None) -> list[int] | None:
    """The numbers of --heads=1,3. Raises InputError for what is none."""
    if given is None:
        return None
    try:
        return [int(number) for number in given.split(",")]
    except ValueError:
        raise InputError(
            f"--heads={given} is no list of numbers such as --heads=1,3"
        ) from None


def _read(run_: Run, options: Options) -> tuple[list[str], list[str] | None]:
    """Sentences, and the translations if they are given."""
    if options.reference is not None:
        return read_pairs_for(run_, options)
    if options.source is not None:
        return list(read_lines(Path(options.source))), None
    return list(lines_of(sys.stdin.buffer)), None


def _with_alternatives(options: Options, run_: Run, is_page: bool) -> Options:
    """Ask the search for the candidates that are shown beside the best."""
    beam_size = run_.config["decoding"]["beam_size"]
    most = min(ALTERNATIVES, beam_size) if is_page else 1
    return dataclasses.replace(options, search={"n_best": most, **options.search})
