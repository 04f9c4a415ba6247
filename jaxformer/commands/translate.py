"""--mode=translate: lines of standard input to standard output, and nothing else.

With --n_best above 1, --json or --alignment each line becomes a line of JSON: "line"
counts from 1, and each of "hypotheses", best first, has "text", "score" (log P over the
length penalty), "log_probability", "tokens", and "source_pieces" and "pieces", with
which --mode=score finds the log-probability again. "alignment" links their indices.
"""

import json as json_format
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.config_files import ConfigRequest
from jaxformer.data.stream import read_blocks
from jaxformer.data.text import read_lines
from jaxformer.decoding.forced import joined_links, pharaoh
from jaxformer.decoding.parts import Hypothesis, best_texts
from jaxformer.decoding.translate import Translator
from jaxformer.errors import InputError
from jaxformer.translators import open_translator


def as_json(line: int, found: Sequence[Hypothesis], aligner: Translator | None) -> str:
    """Write the hypotheses of line number `line`, from 1, as JSON."""
    hypotheses = [each._asdict() for each in found]
    for each in hypotheses if aligner else []:
        maps = aligner.attention_of_parts(each["source_pieces"], each["pieces"])
        each["alignment"] = pharaoh(joined_links(maps))
    return json_format.dumps(
        {"line": line, "hypotheses": hypotheses}, ensure_ascii=False
    )


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    prefix: Path | None,
    json: bool,
    alignment: bool,
    **options: Any,
) -> None:
    """Translate standard input line by line; a blank line stays blank.

    Of several processes the first one reads and writes, and all translate.
    """
    _, translator = open_translator(workdir, config, **options)
    in_json = json or alignment or translator.options.n_best > 1
    prefixes, blocks = iter(()), read_blocks(sys.stdin.buffer)
    if prefix is not None:
        begins, blocks = list(read_lines(prefix)), list(blocks)
        prefixes, lines = iter(begins), sum(map(len, blocks))
        if len(begins) != lines:
            raise InputError(
                f"{prefix} has {len(begins)} lines and standard input has {lines}; "
                "line N begins the translation of line N: leave the lines of texts "
                "without a prefix blank"
            )
    output = sys.stdout.buffer  # UTF-8 and \n, whatever the locale
    translated = 0
    for block in blocks:
        begins = [next(prefixes, "") for _ in block]
        found = translator.translate_all(block, prefixes=begins, first=translated)
        if processes.is_first():
            written = best_texts(found)
            if in_json:
                written = [
                    as_json(line, hypotheses, translator if alignment else None)
                    for line, hypotheses in enumerate(found, start=translated + 1)
                ]
            output.writelines(f"{line}\n".encode() for line in written)
            output.flush()
        translated += len(block)
