"""jaxformer visualize: attention as a page to open, or as a picture for a paper.

Sentences are read from standard input or --source and translated first; with
--reference the given translations are shown. A page takes up to fifty sentences, a
picture one. An existing --output is replaced.
"""

import sys
from pathlib import Path
from typing import Any

from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.reports.attention import ENDINGS, AttentionView
from jaxformer.reports.attention_data import KINDS, attend
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.open import open_translator
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import of_tags, read_text
from jaxformer.system.errors import InputError
from jaxformer.system.files import require_output
from jaxformer.system.first import once
from jaxformer.text.lines import decode_lines, read_lines

ALTERNATIVES = 4  # of each sentence, if the beam is that wide


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    source: Path | None,
    reference: Path | None,
    output: Path | None,
    attention: str,
    view: str,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Write `output`, by default attention.html in the run folder."""
    file = output or workdir / "attention.html"
    shown_first = read_attention(attention)
    this = of_tags(open_run(workdir, config), options)
    require_output(file, ENDINGS)
    n_best = min(ALTERNATIVES, options.resolve(this.config).beam_size)
    found = options.resolve(this.config, n_best=n_best)
    translator = open_translator(this, models, found)
    if reference is not None:
        given = source, reference, "test", options
        _, (sources, targets) = read_text(this, *given, is_scored=False)
    else:
        given = source and read_lines(source)
        given = given or decode_lines(sys.stdin.buffer, "standard input")
        sources, targets = list(given), None
    title = f"Attention of {this.workdir.path.name}, {this.config.data.direction}"
    shown = AttentionView(attend(translator, sources, targets), title)
    if file.suffix != ".html" and len(shown.viewed) > 1:
        raise InputError(f"{file} shows one sentence; give one, or a page (.html)")

    def save() -> int:
        shown.save(file, view=view, **shown_first)
        return file.stat().st_size

    size = once(save)
    return {"output": str(file), "sentences": len(shown.viewed), "bytes": size}


def read_attention(text: str) -> dict[str, Any]:
    """Read STACK:LAYER:HEADS; an empty LAYER is the last one. Raises InputError."""
    stack, layer, heads = (*text.split(":"), "", "")[:3]
    numbers = heads.split(",") if heads else []
    is_number = all(map(str.isdecimal, [layer or "1", *numbers]))
    if stack not in KINDS or text.count(":") > 2 or not is_number:
        raise InputError(
            f"--attention={text} is none of STACK, STACK:LAYER and STACK:LAYER:HEADS, "
            f"such as cross:3:1,2; stacks are {', '.join(KINDS)}"
        )
    return {
        "attention": stack,
        "layer": int(layer) if layer else None,
        "heads": [*map(int, numbers)] or None,
    }
