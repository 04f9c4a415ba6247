"""jaxformer new: write a config for a text, with the reason for each value.

The config begins with one that comes with jaxformer, which jaxformer.runs.recipes
chooses, and sets what depends on the text and on this device.
"""

import dataclasses
import logging
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from textwrap import fill

import jax
import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.config.languages import require_language
from jaxformer.decoding.fastest_dtype import LEAST_GAIN
from jaxformer.models.architectures import make_model
from jaxformer.runs.config_files import ConfigRequest, Values, parse_config
from jaxformer.runs.estimates import describe_load, seconds_per_update
from jaxformer.runs.recipes import describe_quality, recipe_for
from jaxformer.system.errors import InputError
from jaxformer.system.files import require_output, url_of, write_atomically
from jaxformer.text.flaws import SAMPLE, require_languages
from jaxformer.text.languages import UNDETERMINED, recognise
from jaxformer.text.lines import normalise
from jaxformer.text.sources import Pair, read_pairs

logger = logging.getLogger(__name__)

BYTES_OF_A_PIECE = 4  # of UTF-8, about 4 in any script
MOST_LONG = 0.01  # share of pairs that are longer than a row
LONGEST_ROW = 256  # pieces
COVERAGE = 0.9995  # of characters in Chinese and Japanese, as SentencePiece recommends
_RECORDS = re.compile(r"\.(tsv|jsonl|parquet)(?:\.\w+)?$")


class Survey:
    """Counts of one reading of a text, without pairs that have a blank side.

    Raises InputError for a text without such pairs, or with more than half of `dev`.
    """

    def __init__(self, pairs: Iterable[Pair], dev: Iterable[Pair]) -> None:
        self.pairs, self.target_bytes = 0, 0
        known = {tuple(map(normalise, pair)) for pair in dev}
        unseen = known.copy()
        self.lengths: Counter[int] = Counter()  # bytes of the longer side
        self.characters: Counter[str] = Counter()
        self.sample: list[list[str]] = []  # the first pairs
        for pair in pairs:
            texts = [*map(normalise, pair)]
            unseen.discard(tuple(texts))
            if all(texts):
                sizes = [len(text.encode()) for text in texts]
                self.pairs += 1
                self.target_bytes += sizes[1]
                self.lengths[max(sizes)] += 1
                for own in texts:
                    self.characters.update(own)
                if len(self.sample) < SAMPLE:
                    self.sample.append(texts)
        if not self.pairs:
            raise InputError("--train has no pairs; give another text")
        if 2 * len(unseen) < len(known):
            seen = len(known) - len(unseen)
            raise InputError(
                f"--train has {seen:,} of the {len(known):,} pairs of "
                "--dev, whose scores would mean nothing; give other pairs"
            )

    def characters_for(self, coverage: float) -> int:
        """Count the most frequent characters that are such a share of the text."""
        sums = np.cumsum(sorted(self.characters.values(), reverse=True))
        return int(np.searchsorted(sums, coverage * sums[-1])) + 1

    def share_above(self, pieces: int) -> float:
        """Estimate the share of pairs with a side of more pieces."""
        most = pieces * BYTES_OF_A_PIECE
        return sum(n for size, n in self.lengths.items() if size > most) / self.pairs


def run(
    *,
    config: ConfigRequest,
    workdir: Path | None,
    train: str | None,
    dev: str | None,
    source_language: str | None,
    target_language: str | None,
    output: Path | None,
) -> dict:
    """Write the config file `output`; log the next commands, for the run `workdir`."""
    load = os.getloadavg()[0]  # before the work of this command
    if None in (train, dev, output):
        raise InputError("give --train, --dev and --output=mine.py, the file to write")
    if config != ConfigRequest():
        raise InputError("leave out --config, and change values in the written file")
    require_output(output, [".py"])
    if output.exists():
        raise InputError(f"{output} exists already; choose a new file")
    data = locate(train, dev)
    codes = {"source": source_language, "target": target_language}
    if data["corpus"] in ("jsonl", "parquet") and None in codes.values():
        raise InputError("give the columns: --source_language and --target_language")
    for side, code in codes.items():
        if code:  # of JSON lines and Parquet also the name of the column
            require_language(code, f"--{side}_language")
        data[f"{side}_language"] = code or UNDETERMINED
    text = DataConfig.of(recipe_for(0).values()["data"] | data)
    dev_pairs = [*read_pairs(text, "dev")]
    survey = Survey(read_pairs(text, "train"), dev_pairs)
    for side, texts in zip(codes, zip(*survey.sample, strict=True), strict=True):
        if data[f"{side}_language"] == UNDETERMINED:
            data[f"{side}_language"] = recognise(texts, side)
    if data["source_language"] == data["target_language"] and None in codes.values():
        raise InputError(
            f"both sides seem to be {data['source_language']}; give texts in two "
            "languages, or --source_language and --target_language"
        )
    text = dataclasses.replace(text, **data)
    for split, pairs in (("train", survey.sample), ("dev", dev_pairs[:SAMPLE])):
        try:
            require_languages(pairs, split, text)
        except InputError as error:  # as `check` and `train` will say
            logger.warning("%s", error)
    workdir = workdir or Path("runs", output.stem)
    name = recipe_for(survey.pairs).config
    write_atomically(output, render(survey, data, load))
    logger.info(
        "wrote %s, which begins with %s; next:\n  %s\n  %s", output, name,
        *(shlex.join(["jaxformer", mode, f"--config={output}", str(workdir)])
          for mode in ("check", "train")),
    )  # fmt: skip
    direction = f"{data['source_language']}-{data['target_language']}"
    return {"pairs": survey.pairs, "direction": direction, "config": name}


def locate(train: str, dev: str) -> dict[str, str]:
    """Return the keys of `data` that locate a text, with absolute paths."""
    found = [
        ["files"] if "," in text else _RECORDS.findall(text) for text in (train, dev)
    ]
    if found[0] != found[1] or not found[0]:
        raise InputError(
            f"--train={train} and --dev={dev}: give both as SOURCE,TARGET, or both as "
            "a .tsv, a .jsonl or a .parquet file"
        )
    data = {"corpus": found[0][0], "directory": "", "test": ""}
    for key, text in (("train", train), ("dev", dev)):
        paths = (os.path.expanduser(part.strip()) for part in text.split(","))
        data[key] = ",".join(url_of(path) or os.path.abspath(path) for path in paths)
    return data


def fit(values: Values, survey: Survey) -> dict[str, float]:
    """Set what depends on the text; return estimated seconds of an update by dtype."""
    data = values["data"]
    if 2 * survey.characters_for(data["character_coverage"]) > data["vocab_size"]:
        data["character_coverage"] = COVERAGE
        least = math.ceil(2 * survey.characters_for(COVERAGE) / 1000) * 1000
        data["vocab_size"] = max(data["vocab_size"], least)
    length = values["batches"]["row_length"]
    while length < LONGEST_ROW and survey.share_above(length) > MOST_LONG:
        length *= 2
    values["batches"]["row_length"] = length
    data["max_length"] = max(length, data["max_length"])
    rows, seconds = values["training"]["tokens_per_update"] // length, {}
    for dtype in ("float32", "bfloat16"):
        values["model"]["dtype"] = dtype
        config = parse_config(values)
        size = config.data.vocab_size
        model = make_model(config.model, vocab_size=size, rematerialise=False)
        seconds[dtype] = seconds_per_update(model.flops(rows, length, length), model)
    if seconds["bfloat16"] * LEAST_GAIN > seconds["float32"]:
        values["model"]["dtype"] = "float32"
    return seconds


def render(survey: Survey, data: dict[str, str], load: float) -> str:
    """Return the text of the config file that fits a text and this device."""
    recipe = recipe_for(survey.pairs)
    values = recipe.values()
    values["data"] |= data
    seconds = fit(values, survey)
    steps, tokens = (values["training"][k] for k in ("steps", "tokens_per_update"))
    time = timedelta(seconds=round(steps * seconds[values["model"]["dtype"]]))
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    notes = [
        f"{time} for all updates on {device}, as jaxformer check estimates it",
        *filter(None, [describe_load(load)]),
        *describe_quality(survey.pairs),
    ]
    module, _, row = recipe.config.partition(":")
    of_epoch = survey.target_bytes / BYTES_OF_A_PIECE + survey.pairs  # pieces and EOS
    long = survey.share_above(values["batches"]["row_length"])
    template = files(__package__).joinpath("new.txt").read_text("utf-8")
    return template.format(
        **values,
        pairs=survey.pairs,
        notes="\n".join(fill(f"- {n}", 88, subsequent_indent="  ") for n in notes),
        why=recipe.why,
        epochs=steps * tokens / of_epoch,
        long=f"about {long:.1%}" if long >= 0.0005 else "next to none",
        gain=seconds["float32"] / seconds["bfloat16"],
        module=module,
        recipe=recipe.config,
        row=repr(row) if row else "",
    )
