"""jaxformer align: links between the words, or the pieces, of given translations.

Writes one line for each pair in the format of word aligners: "0-0 1-2" links source
word 0 to target word 0, and 1 to 2. A tag that is added to a source is no word.
--output=FILE.npz gets the attention of every layer and head of pair 0 as "0/encoder"
[N, H, S, S], "0/decoder" [N, H, T, T] and "0/cross" [N, H, T, S], and its pieces as
"0/source" and "0/target".
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxformer.decoding.forced import pharaoh
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.parts import Encode
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.open import open_translator
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import read_text
from jaxformer.system.errors import InputError
from jaxformer.system.files import require_output
from jaxformer.system.first import print_lines, write_file
from jaxformer.system.progress import track
from jaxformer.text.lines import normalise, read_lines


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    output: Path | None,
    units: str,
    source: Path | None,
    reference: Path | None,
    split: str,
    models: ModelChoice,
    options: TranslateRequest,
) -> None:
    """Align the pairs of two files or of a split."""
    if output is not None and (output.exists() or output.suffix != ".npz"):
        raise InputError(
            f"--output={output} exists, or is not called .npz; give a new .npz file"
        )
    require_output(output)
    whole = open_run(workdir, config)
    this, text = read_text(whole, source, reference, split, options)
    translator = open_translator(this, models, options.resolve(this.config))
    translator.require_fit(*text)
    arrays, code_of = {}, this.tokenizer.language_code
    encoders = this.tokenizer.encode, this.tokenizer.for_target("").encode_target
    given = list(read_lines(source)) if source else None
    pairs = track(zip(*text, strict=True), "aligning", len(text.sources), unit="pairs")
    for line, pair in enumerate(pairs):
        maps = translator.attention(*pair)
        links = maps.alignment()
        if units == "words":
            tags = len(maps.target) - len(encoders[1](pair[1:])[0])  # 0 or 1, no word
            pieces = maps.source, maps.target[tags:]
            links = [(s, t - tags) for s, t in links]
            links = word_links(links, pair, pieces, encoders)
            if code_of(pair[0]) and not (given and code_of(given[line])):  # added
                links = [(s - 1, t) for s, t in links if s]
        print_lines([pharaoh(links)])
        if output is not None:
            arrays |= {f"{line}/{key}": value for key, value in maps._asdict().items()}
    if output is not None:
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        write_file(output, content.getvalue())


def word_links(
    links: Sequence[tuple[int, int]],
    pair: Sequence[str],
    pieces: Sequence[Sequence[str]],
    encoders: Sequence[Encode],
) -> list[tuple[int, int]]:
    """Link the words, which spaces and tabs separate, of texts with linked pieces.

    Raises InputError for a tokeniser with pieces of several words.
    """
    words = []
    for text, own, encode in zip(pair, pieces, encoders, strict=True):
        given = re.findall(r"[^ \t]+", text)
        lengths = [len(ids) - 1 for ids in encode(given)]
        if 0 in lengths and normalise(text):  # alone, an invisible word has no pieces
            dot, *after_dot = encode([".", *(f". {word}" for word in given)])
            rest = (len(ids) - len(dot) for ids in after_dot)
            lengths = [alone or n for alone, n in zip(lengths, rest, strict=True)]
        if sum(lengths) != len(own) - 1:
            raise InputError(
                f"the tokeniser has pieces of several words, as in {text[:60]!r}; use "
                "--units=pieces"
            )
        words.append(np.repeat(np.arange(len(lengths)), lengths).tolist())
    return list(dict.fromkeys((words[0][s], words[1][t]) for s, t in links))
