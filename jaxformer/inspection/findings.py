"""Text reports of `inspect_corpus`: warnings, lengths, then findings with examples."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxformer.inspection.text_findings import Described
from jaxformer.system.errors import printable
from jaxformer.tokens import SIDES

SHOWN = 5  # examples of each finding; the JSON has more
_WIDTH = 88  # columns of a line, without the 12 that name the section
_LEAST_QUOTE = 30  # characters
_FREQUENT = (20, 0.005)  # pairs and share of pairs that have one sentence

# Kinds of findings in the order of the report, their words after "3 pairs of 1,000",
# and the share of pairs up to which there is no warning: every corpus has some names,
# odd sentences and rare characters.
KINDS = {
    "pair_overlap": ("that train has too", 0),
    "source_overlap": ("with a source that train has too", 0),
    "target_overlap": ("with a target that train has too", 1),
    "swapped": ("with source and target swapped", 0),
    "source_in_target_language": ("with a source in the target's language", 0),
    "target_in_source_language": ("with a target in the source's language", 0),
    "source_in_neither": ("with a source in neither language", 0.001),
    "target_in_neither": ("with a target in neither language", 0.001),
    "identical_sides": ("with the same text on both sides", 0.005),
    "source_blank": ("with a blank source", 0),
    "target_blank": ("with a blank target", 0),
    "source_characters": ("with odd characters in the source", 0),
    "target_characters": ("with odd characters in the target", 0),
    "source_unknown": ("with source words unknown to the tokeniser", 0.01),
    "target_unknown": ("with target words unknown to the tokeniser", 0.01),
    "pair_repeated": ("that repeat an earlier pair", 0),
    "source_repeated": ("with the source of an earlier pair", 1),
    "target_repeated": ("with the target of an earlier pair", 1),
}


def warnings(corpus: Described, *, deduplicate: bool) -> list[str]:
    """Return the findings to act on, a line each.

    `deduplicate` says whether preparing drops repeated pairs of train.
    """
    found = []
    for kind, finding, pairs, title in _findings(corpus):
        count, chance = finding["pairs"], KINDS[kind][1] * pairs
        # In a small split one pair may be chance and still exceed the share.
        usual = max(1, chance + 3 * chance**0.5) if chance else 0
        if kind in ("source_repeated", "target_repeated"):
            count = next(iter(finding["labels"].values()))["pairs"]
            usual = math.ceil(max(_FREQUENT[0], _FREQUENT[1] * pairs)) - 1
        is_dropped = kind == "pair_repeated" and title.startswith("train")
        if count > usual and not (deduplicate and is_dropped):
            found.append(title)
    return found


def describe(corpus: Described, found: Sequence[str]) -> str:
    """Return the report for a terminal: the warnings `found`, then the sections."""
    reasons = dict.fromkeys(corpus["left_out"].values())  # each of them once
    summary = [
        f"{len(found) or 'no'} warning{'' if len(found) == 1 else 's'}",
        *(f"- {warning}" for warning in found),
        *(f"not inspected: {reason}" for reason in reasons),
    ]
    return "\n".join(
        printable(f"{'' if number else title:<12}{line}")
        for title, lines in {"corpus": summary, **sections(corpus)}.items()
        for number, line in enumerate(lines)
    )


def sections(corpus: Described) -> dict[str, list[str]]:
    """Return lines of a table of lengths, and of the findings with their examples."""
    return {
        "lengths": list(_describe_lengths(corpus["splits"])),
        "findings": list(_describe_findings(corpus)),
    }


def _describe_findings(corpus: Described) -> Iterator[str]:
    for kind, finding, _, title in _findings(corpus):
        yield f"{title}:"
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
                place = _place(example["place"])
                if "train" in example:
                    place += f" = {_place(example['train'])}"
                source, target = example["text"]
                yield _quote(f"  {place}  ", source)
                yield _quote(f"  {'':{len(place)}}  ", target)


def without_text(corpus: object) -> object:
    """Return a copy without quotations, for a line of JSON."""
    if isinstance(corpus, dict):
        return {k: without_text(v) for k, v in corpus.items() if k != "text"}
    return [*map(without_text, corpus)] if isinstance(corpus, list) else corpus


def _findings(corpus: Described) -> Iterator[tuple[str, dict, int, str]]:
    """Yield kind, finding, pairs of the split, and "train: 3 pairs of 10 with ..."."""
    for kind, (words, _) in KINDS.items():
        for name, split in corpus["splits"].items():
            finding = split["findings"].get(kind, {"pairs": 0})
            if count := finding["pairs"]:
                title = f"{name}: {count:,} pair{'' if count == 1 else 's'} of "
                title += f"{split['pairs']:,} {words}"
                labels = list(finding["labels"].items())[:3]
                if labels and not kind.endswith("_repeated"):
                    most = (f"{found['pairs']:,} {label}" for label, found in labels)
                    title += f" ({', '.join(most)})"
                yield kind, finding, split["pairs"], title


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
                    columns = "".join(f"{value:>8.0f}" for value in values)
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
