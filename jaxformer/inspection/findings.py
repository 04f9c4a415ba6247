"""Text reports of `inspect_corpus`: warnings, lengths, then findings with examples."""

import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from shutil import get_terminal_size
from typing import NamedTuple

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.inspection.text_findings import Described, place
from jaxformer.system.errors import counted, printable
from jaxformer.text.cleaning import CorpusReport
from jaxformer.text.sources import read_parts
from jaxformer.tokens import SIDES

SHOWN = 5  # examples of each finding; the JSON has more
_WIDTH = 88  # columns of a line, without the 12 that name the section
_LEAST_QUOTE = 30  # characters
# Shares of pairs that preparing drops without a warning: as below, and as flawed.
_MOST_LOST, _MOST_FLAWED = 0.01, 0.1
_CORRECT = "correct the lines listed in --output=findings.tsv"
_LOST = {"too_long": "max_length", "ratio": "max_ratio", "empty": ""}  # keys to raise
_FREQUENT = (20, 0.005)  # pairs and share of pairs that have one sentence

# Kinds of findings in the order of the report, their words after "3 pairs of 1,000",
# the share of pairs up to which there is no warning, as every corpus has some names and
# rare characters, and the reason for which preparing drops them, or may drop them.
KINDS = {
    "pair_overlap": ("that train has too", 0),
    "source_overlap": ("with a source that train has too", 0),
    "target_overlap": ("with a target that train has too", 1),
    "swapped": ("with source and target swapped", 0, "swapped"),
    "source_in_target_language": (
        "with a source in the target's language",
        0,
        "language",
    ),
    "target_in_source_language": (
        "with a target in the source's language",
        0,
        "language",
    ),
    "source_in_neither": ("with a source in neither language", 0.001, "language"),
    "target_in_neither": ("with a target in neither language", 0.001, "language"),
    "shifted": ("in blocks that fit better shifted by a line", 0),
    "header": ("that name the languages, a header of columns", 0),
    "entities": ("with HTML entities", 0.001, "entities"),
    "mojibake": ("with a side that was decoded wrongly", 0, "mojibake"),
    "quotes": ("with a spreadsheet's doubled quotes", 0, "quotes"),
    "identical_sides": ("with the same text on both sides", 0.005, "copy"),
    "source_blank": ("with a blank source", 0, "empty"),
    "target_blank": ("with a blank target", 0, "empty"),
    "source_characters": ("with odd characters in the source", 0),
    "target_characters": ("with odd characters in the target", 0),
    "source_unknown": ("with source words unknown to the tokeniser", 0.01),
    "target_unknown": ("with target words unknown to the tokeniser", 0.01),
    "pair_repeated": ("that repeat an earlier pair", 0, "duplicate"),
    "source_repeated": ("with the source of an earlier pair", 1),
    "target_repeated": ("with the target of an earlier pair", 1),
}


class Finding(NamedTuple):
    """One kind of finding in a split."""

    title: str  # "train: 3 pairs of 10 with ..."
    cure: str  # "set data.drop=copy"
    count: int
    pairs: int  # of the split
    kind: str = ""  # of KINDS
    found: Described | None = None


def warnings(corpus: Described, config: DataConfig) -> list[Finding]:
    """Return what to act on: what preparing drops, then by the share of pairs."""
    lost, others = [], []
    for name, split in corpus["splits"].items():
        for reason, count in split.get("dropped", {}).items():
            pairs, cure, by = split["pairs"], _CORRECT, f"as {reason}"
            if key := _LOST.get(reason):
                cure, by = "raise it", f"by data.{key}={getattr(config, key)}"
            if count > (_MOST_LOST if reason in _LOST else _MOST_FLAWED) * pairs:
                title = f"{name}: {count:,} pairs of {pairs:,}, {count / pairs:.0%}, "
                lost.append(Finding(f"{title}are dropped {by}", cure, count, pairs))
    for each in _findings(corpus, config):
        chance = KINDS[each.kind][1] * each.pairs
        # In a small split one pair may be chance and still exceed the share.
        usual = max(1, chance + 3 * chance**0.5) if chance else 0
        if each.kind in ("source_repeated", "target_repeated"):
            most = next(iter(each.found["labels"].values()))["pairs"]
            usual = math.ceil(max(_FREQUENT[0], _FREQUENT[1] * each.pairs)) - 1
            each = each._replace(count=most)
        if each.cure and each.count > usual:
            others.append(each)
    return lost + sorted(others, key=lambda each: -each.count / each.pairs)


def _notes(corpus: Described, config: DataConfig, found: list[Finding]) -> list[str]:
    """Say how to drop all that can be, what is dropped, and what is not inspected."""
    lines, droppable = [], [each for each in found if "data.drop=" in each.cure]
    if droppable[1:]:
        every = config.dropping(*(KINDS[each.kind][2] for each in droppable))
        lines = [f"set {every} to drop {len(droppable)} of these from train"]
    for name, split in corpus["splits"].items():
        if any(split.get("dropped", {}).values()):
            counts = CorpusReport(dropped=split["dropped"]).reasons.replace("_", " ")
            lines.append(f"{name}: preparing drops {counts}")
    reasons = dict.fromkeys(corpus["left_out"].values())  # each of them once
    return lines + [f"not inspected: {reason}" for reason in reasons]


def describe(corpus: Described, config: DataConfig, found: list[Finding]) -> str:
    """Return the report for a terminal: the warnings `found`, then the sections."""
    parts = sections(corpus, config, found)
    said = [f"- {each.title}: {each.cure}" for each in found] + parts.pop("notes")
    width = min(_WIDTH, get_terminal_size((100, 0)).columns - 12)
    wrapped = (textwrap.wrap(each, width, subsequent_indent="  ") for each in said)
    summary = [counted(len(found), "warning"), *chain.from_iterable(wrapped)]
    return "\n".join(
        printable(f"{'' if number else title:<12}{line}")
        for title, lines in {"corpus": summary, **parts}.items()
        for number, line in enumerate(lines)
    )


def table(corpus: Described, config: DataConfig) -> Iterator[str]:
    """Yield the lines of a TSV file with all pairs of all findings."""
    yield "corpus\tfile\tline\tkind\tsource\ttarget\n"
    for name, split in corpus["splits"].items():
        kinds = defaultdict(list)
        for kind, found in split["findings"].items():
            for index in found["at"]:
                kinds[index].append(kind)
        for each in corpus["splits"].values():
            for kind, found in each["findings"].items():
                for index in found["train_at"].get(name, ()):
                    kinds[index].append(kind)
        _, part, data = config.texts[name]
        pairs = chain.from_iterable(each.pairs for each in read_parts(data, part))
        for index, pair in enumerate(pairs):
            for kind in dict.fromkeys(kinds.get(index, ())):
                where = place(index, kind.partition("_")[0], split["files"])
                cells = name, *map(str, where), kind, *pair
                yield "\t".join(re.sub(r"[\t\r\n]", " ", each) for each in cells) + "\n"


def sections(
    corpus: Described, config: DataConfig, found: list[Finding]
) -> dict[str, list[str]]:
    """Return lines of notes, a table of lengths, and the findings with examples."""
    return {
        "notes": _notes(corpus, config, found),
        "lengths": list(_describe_lengths(corpus["splits"])),
        "findings": list(_describe_findings(corpus, config)),
    }


def _describe_findings(corpus: Described, config: DataConfig) -> Iterator[str]:
    for title, cure, *_, kind, finding in _findings(corpus, config):
        yield f"{title}:" if cure else f"{title}, dropped:"
        labels = list(finding["labels"].items())[:SHOWN]
        if kind.endswith("_blank"):
            yield f"  {_places(finding)}"
        elif kind.endswith("_repeated"):
            for _, found in labels:
                text = found["examples"][0]["text"][kind.startswith("target")]
                yield _quote(f"  {found['pairs']:>5,} x ", text, _places(found, most=3))
        elif kind.endswith(("_characters", "_unknown")):
            for label, found in labels:
                yield f"  {found['count']:>5,} x {label}  {_places(found)}"
        else:
            for example in finding["examples"][:SHOWN]:
                where = _place(example["place"])
                if "train" in example:
                    where += f" = {_place(example['train'])}"
                source, target = example["text"]
                yield _quote(f"  {where}  ", source)
                yield _quote(f"  {'':{len(where)}}  ", target)


def without_text(corpus: object) -> object:
    """Return a copy without quotations and indices, for a line of JSON."""
    if isinstance(corpus, dict):
        own = corpus.keys() - {"text", "at", "train_at"}
        return {key: without_text(corpus[key]) for key in corpus if key in own}
    return [*map(without_text, corpus)] if isinstance(corpus, list) else corpus


def _findings(corpus: Described, config: DataConfig) -> Iterator[Finding]:
    """Yield what was found; what preparing drops from train needs no cure."""
    dropped = {*(config.drop or ()), "empty", "duplicate" if config.deduplicate else ""}
    for kind, (words, _, *reason) in KINDS.items():
        for name, split in corpus["splits"].items():
            found, cure = split["findings"].get(kind, {"pairs": 0}), _CORRECT
            if kind.endswith("_overlap"):
                cure = "remove the lines of train listed in --output=findings.tsv"
            elif kind.endswith("_unknown") and not config.tokenizer:
                if config.texts[name].split != "train":
                    cure = f"add training text that has the characters, or {_CORRECT}"
                if config.character_coverage < 1:
                    cure = f"set data.character_coverage=1, or {cure}"
            elif reason and config.texts[name].split == "train":
                cure = f"set {config.dropping(*reason)}"
                if dropped & {*reason}:
                    cure = ""
                elif reason == ["duplicate"]:
                    cure = "set data.deduplicate=True"
            if count := found["pairs"]:
                pairs = split["pairs"]
                title = f"{name}: {counted(count, 'pair')} of {pairs:,} {words}"
                labels = list(found["labels"].items())[:3]
                if labels and not kind.endswith("_repeated"):
                    most = (f"{each['pairs']:,} {label}" for label, each in labels)
                    more = ", ..." if len(found["labels"]) > len(labels) else ""
                    title += f" ({', '.join(most)}{more})"
                yield Finding(title, cure, count, pairs, kind, found)


def _describe_lengths(splits: Described) -> Iterator[str]:
    if not splits:
        return
    width = max(6, *(len(name) + 1 for name in splits))
    yield f"{'':<{width + 14}}{'median':>8}{'90 %':>8}{'99 %':>8}{'longest':>9}"
    for name, split in splits.items():
        for unit in ("words", "pieces"):
            for side in SIDES:
                if counts := split["lengths"][side].get(unit):
                    lengths = np.repeat(list(counts), list(counts.values()))
                    values = np.percentile(lengths, (50, 90, 99))
                    columns = "".join(f"{value:>8,.0f}" for value in values)
                    yield f"{name:<{width}}{side} {unit:<7}{columns}{lengths.max():>9,}"
        if percentiles := split.get("ratio", {}).get("percentiles"):
            least, half, most = (percentiles[percent] for percent in (1, 50, 99))
            yield f"{name:<{width}}target pieces for a source piece: median {half:.2f}"
            yield f"{'':<{width}}1 % of pairs below {least:.2f}, 1 % above {most:.2f}"


def _quote(before: str, text: str, after: str = "") -> str:
    """Return a line with an escaped quotation, cut to the width of the report."""
    room = max(_WIDTH - len(before) - len(after) - 4, _LEAST_QUOTE)
    text = printable(text[:_WIDTH])
    if len(text) > room:
        text = text[: room - 3] + "..."
    return f'{before}"{text}"  {after}'.rstrip()


def _place(place: Sequence) -> str:
    file, line = place
    return f"{Path(file).name}:{line}"


def _places(found: Described, most: int = SHOWN) -> str:
    """Return the first places, as in "a.en:4, :501 and 3 more"."""
    shown, before = [], None
    for file, line in [example["place"] for example in found["examples"][:most]]:
        shown.append(_place((file, line)) if file != before else f":{line}")
        before = file
    more = found["pairs"] - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
