"""jaxformer translate: lines of standard input to standard output, and nothing else.

With --n_best above 1, --json or --alignment each line becomes a line of JSON: "line"
counts from 1, "source" is the line itself, and each of "hypotheses", best first, has
"text", "score" (log P over the length penalty), "log_probability", "tokens", "words"
with a log-probability each, and "source_pieces" and "pieces", with which jaxformer
score finds the log-probability again; "log_probabilities" are those of "pieces", and
"alignment" links indices.

With --markup the input is one document, and so is the output.
"""

import json as json_format
import logging
import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from jaxformer.decoding.all_processes import translate_all
from jaxformer.decoding.forced import joined_links, pharaoh
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.parts import Hypothesis, best_texts, warn_of_copies
from jaxformer.decoding.translator import Translator
from jaxformer.documents.document import translate_document
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.open import open_translator, open_utility
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import of_tags, require_text_output
from jaxformer.system.errors import InputError, counted
from jaxformer.system.first import once, print_lines, print_text, write_file
from jaxformer.text.lines import read_document, read_lines
from jaxformer.text.stream import blocks_of, read_blocks

logger = logging.getLogger(__name__)


def as_json(
    line: int, source: str, found: Sequence[Hypothesis], aligner: Translator | None
) -> str:
    """Write line number `line`, from 1, and its hypotheses as JSON."""
    hypotheses = [each._asdict() | each.summary() for each in found]
    for each in hypotheses if aligner else []:
        maps = aligner.attention_of_parts(each["source_pieces"], each["pieces"])
        each["alignment"] = pharaoh(joined_links(maps))
    found = {"line": line, "source": source, "hypotheses": hypotheses}
    return json_format.dumps(found, ensure_ascii=False)


def read_each(file: Path, count: int, given: object) -> list[str]:
    """Read a file with a line for each of the `count` lines of the text `given`."""
    lines = list(read_lines(file))
    if len(lines) != count:
        raise InputError(
            f"{file} has {counted(len(lines), 'line')} and {given} has {count:,}; "
            "line N is for the translation of line N: leave the others blank"
        )
    return lines


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    source: Path | None,
    output: Path | None,
    prefix: Path | None,
    phrases: Path | None,
    json: bool,
    alignment: bool,
    markup: str | None,
    placeholders: Path | None,
    models: ModelChoice,
    options: TranslateRequest,
) -> None:
    """Translate standard input or `source` line by line; a blank line stays blank.

    A line without a character of the vocabulary is copied, and a warning counts them.
    Of several processes the first one reads and writes, and all translate.
    """
    require_text_output(output, [source, prefix, phrases, placeholders])
    of_lines = json, alignment, options.given.get("n_best"), prefix, phrases
    if markup and any(of_lines):
        raise InputError(
            "--json, --alignment, --n_best, --prefix and --phrases are not for "
            "documents; leave them or --markup out"
        )
    if placeholders and not markup:
        raise InputError("--placeholders is for a document; give --markup, such as txt")
    run = of_tags(open_run(workdir, config, models.dtype), options)
    found = options.resolve(run.config, split_sentences=bool(markup))
    translator = open_translator(run, models, found, open_utility(models))
    if markup:
        text, messages = translate_document(
            translator,
            once(lambda: read_document(source)),
            markup,
            patterns=list(read_lines(placeholders)) if placeholders else None,
            translate=partial(translate_all, translator),
        )
        for message in messages:
            logger.warning("%s", message)
        return write_file(output, text) if output else print_text([text])
    in_json = json or alignment or translator.options.n_best > 1
    name, given, kept = source or "standard input", {}, []
    blocks = blocks_of(read_lines(source)) if source else read_blocks(sys.stdin.buffer)
    if prefix or phrases:
        blocks = list(blocks)
        count = sum(map(len, blocks))
    if prefix:
        given["prefixes"] = iter(read_each(prefix, count, name))
    if phrases:
        lines = read_each(phrases, count, name)
        given["phrases"] = (line.split("\t") for line in lines)
    translated, copies = 0, []
    for block in blocks:
        own = {name: list(islice(each, len(block))) for name, each in given.items()}
        found = translate_all(translator, block, **own, first=translated)
        copies += [hypotheses for hypotheses in found if hypotheses[0].is_copy]
        written = best_texts(found)
        if in_json:
            written = [
                as_json(line, *each, translator if alignment else None)
                for line, each in enumerate(
                    zip(block, found, strict=True), start=translated + 1
                )
            ]
        if output is None:
            print_lines(written)
        else:
            kept += written
        translated += len(block)
    if output is not None:
        write_file(output, "".join(f"{line}\n" for line in kept))
    warn_of_copies(copies)
