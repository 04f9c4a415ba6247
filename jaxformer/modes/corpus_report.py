"""What --mode=check says about the text: first what to look at, then all of it.

Words for what `jaxformer.data.inspection` finds; used by `jaxformer.modes.check`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

SIDES = ("source", "target")
SHOWN = 5  # examples of each finding; the JSON has more
WIDTH = 88  # columns, of which the first 12 name the section
BARS = 24  # columns of the longest
QUOTE = 60  # characters

# Below these shares of a split's pairs or words, what may be chance is shown, but is no
# thing to look at: every corpus has sentences of names, and a few rare characters.
ODD_SENTENCES = 0.001
UNKNOWN_WORDS = 0.001
SAME_ON_BOTH_SIDES = 0.005
ONE_SENTENCE = 0.005
LEAST_TIMES = 20

VERDICTS = {
    "swapped": "look swapped",
    "source_in_target_language": "have a source that looks like the target language",
    "target_in_source_language": "have a target that looks like the source language",
    "source_in_neither": "have a source like neither language, or an unusual one",
    "target_in_neither": "have a target like neither language, or an unusual one",
}
LOOKED_FOR = (
    "swapped pairs, sides in the wrong language, text of dev or test in train, unknown "
    "words, odd characters, blank sides, sentences that come again and again"
)


def describe(corpus: dict[str, Any], *, deduplicate: bool) -> Iterator[str]:
    """The report in sections, each some lines without a line end after the last.

    `deduplicate` says whether preparing drops pairs that come again.
    """
    things = list(find_things(corpus, deduplicate=deduplicate))
    first = f"nothing found; looked for {LOOKED_FOR}"
    if things:
        first = f"{len(things)} {_plural(len(things), 'thing')} to look at:"
    left_out = [f"not looked at: {why}" for why in corpus["left_out"].values()]
    yield _section("corpus", [first, *(f"- {t}" for t in things), *left_out])
    yield _section("lengths", _describe_lengths(corpus["splits"]))
    for title, lines in (
        ("languages", _describe_languages(corpus["splits"])),
        ("overlap", _describe_overlap(corpus)),
        ("words", _describe_words(corpus["splits"])),
        ("characters", _describe_characters(corpus["splits"])),
        ("repeats", _describe_repeats(corpus["splits"])),
    ):
        if lines := list(lines):
            yield _section(title, lines)


def find_things(corpus: dict[str, Any], *, deduplicate: bool) -> Iterator[str]:
    """What a person should look at before training, a line each; the worst first."""
    for name, kinds in corpus["overlap"].items():
        pairs, sources = kinds["pair"]["pairs"], kinds["source"]["pairs"]
        of = corpus["splits"][name]["pairs"]
        if sources or pairs:
            yield (
                f"{name}: {sources:,} of {of:,} sources are in train, {pairs:,} with "
                "the same target: a score on them is not one on unseen text"
            )
    for name, split in corpus["splits"].items():
        yield from _things_of(name, split, deduplicate and name == "train")


def _things_of(name: str, split: dict[str, Any], deduplicated: bool) -> Iterator[str]:
    pairs = split["pairs"]
    for verdict, what in VERDICTS.items():
        count = split.get("languages", {}).get(verdict, {}).get("pairs", 0)
        least = ODD_SENTENCES * pairs if verdict.endswith("neither") else 0
        if count > least:
            yield f"{name}: {count:,} of {pairs:,} pairs {what}"
    if split["identical_sides"]["pairs"] > SAME_ON_BOTH_SIDES * pairs:
        count = split["identical_sides"]["pairs"]
        yield f"{name}: {count:,} of {pairs:,} pairs have the same text on both sides"
    for side in SIDES:
        found = split[side]
        if found["unknown"]["count"] > UNKNOWN_WORDS * found["words"]:
            yield (
                f"{name}: {_share(found['unknown']['count'], found['words'])} of the "
                f"{side} words are unknown to the tokeniser"
            )
        if found["characters"]:
            kinds = len(found["characters"])
            yield (
                f"{name}: the {side} has {kinds} {_plural(kinds, 'kind')} of odd "
                f"characters, such as {next(iter(found['characters']))}"
            )
        if blank := found["blank"]["pairs"]:
            yield f"{name}: {blank:,} {_plural(blank, 'pair')} with a blank {side}"
        for group in found["repeated"]["most"][:1]:
            if group["pairs"] >= max(LEAST_TIMES, ONE_SENTENCE * pairs):
                yield f"{name}: one {side} sentence stands in {group['pairs']:,} pairs"
    extra = split["repeated_pairs"]["extra"]
    if extra and not deduplicated:
        yield f"{name}: {extra:,} {_plural(extra, 'pair')} that came before"


# Sections -------------------------------------------------------------------------


def _describe_lengths(splits: dict[str, Any]) -> Iterator[str]:
    for name, split in splits.items():
        for unit in ("words", "pieces"):
            sides = [split[side]["lengths"][unit] for side in SIDES]
            yield f"{name}, {split['pairs']:,} pairs: {unit} a sentence; " + "; ".join(
                f"{side} {_average(counts):.1f}, longest {max(map(int, counts)):,}"
                for side, counts in zip(SIDES, sides, strict=True)
            )
            if name == "train":
                yield from _draw_histograms(sides)
        if percentiles := split["ratio"]["percentiles"]:
            least, half, most = (percentiles[percent] for percent in (1, 50, 99))
            yield (
                f"{'':{len(name)}}  target pieces for a source piece: half of the pairs "
                f"below {half}, 1 % below {least}, 1 % above {most}"
            )


def _draw_histograms(sides: Sequence[dict[int, int]]) -> Iterator[str]:
    """A line for each range of lengths, with a bar for either side."""
    edges = choose_edges(sides)
    counts = [
        [
            sum(n for length, n in side.items() if low <= length < high)
            for low, high in zip(edges, edges[1:], strict=False)
        ]
        for side in sides
    ]
    most = max(map(max, counts))
    for i, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
        name = f"{low}" if high == low + 1 else f"{low}-{high - 1}"
        if i == len(edges) - 2:
            name = f"{low}-"
        bars = [f"{c[i]:>10,} {_bar(c[i] / most):<{BARS}}" for c in counts]
        yield f"{name:>9}" + "".join(bars).rstrip()


def choose_edges(sides: Sequence[dict[int, int]]) -> list[int]:
    """Where ranges of lengths begin: ten even ones for 99 %, one for what is longer."""
    lengths = sorted({length for side in sides for length in side})
    total = sum(sum(side.values()) for side in sides)
    seen, usual = 0, 0
    for usual in lengths:
        seen += sum(side.get(usual, 0) for side in sides)
        if seen >= 0.99 * total:
            break
    step = -(-max(usual, 1) // 10)
    edges = [*range(0 if lengths[0] == 0 else 1, usual + 1, step)]
    edges.append(edges[-1] + step)
    if lengths[-1] >= edges[-1]:
        edges.append(lengths[-1] + 1)
    return edges


def _describe_languages(splits: dict[str, Any]) -> Iterator[str]:
    for name, split in splits.items():
        for verdict, what in VERDICTS.items():
            found = split.get("languages", {}).get(verdict, {"pairs": 0})
            if not found["pairs"]:
                continue
            share = _share(found["pairs"], split["pairs"])
            yield f"{name}: {found['pairs']:,} pairs ({share}) {what}; surest first"
            for example in found["examples"][:SHOWN]:
                sides = " | ".join(_cut(example[s], QUOTE // 2) for s in SIDES)
                yield f"  {_place(example['place'])}  {sides}"
        if count := split["identical_sides"]["pairs"]:
            yield (
                f"{name}: {count:,} pairs ({_share(count, split['pairs'])}) have the "
                "same text on both sides"
            )
            for example in split["identical_sides"]["examples"][:SHOWN]:
                yield f"  {_place(example['place'])}  {_cut(example['source'])}"


def _describe_overlap(corpus: dict[str, Any]) -> Iterator[str]:
    for name, kinds in corpus["overlap"].items():
        of = corpus["splits"][name]["pairs"]
        if not any(found["pairs"] for found in kinds.values()):
            continue
        yield f"of {of:,} pairs of {name}, train has " + ", ".join(
            f"{kinds[kind]['pairs']:,} {what}"
            for kind, what in (
                ("pair", "with both sides"), ("source", "sources"), ("target", "targets")
            )
        )  # fmt: skip
        for kind in ("pair", *SIDES):
            for example in kinds[kind]["examples"][:SHOWN]:
                text = example["target" if kind == "target" else "source"]
                yield (
                    f"  {kind:<6}  {_place(example['place'])} = "
                    f"{_place(example['train'])}  {_cut(text)}"
                )


def _describe_words(splits: dict[str, Any]) -> Iterator[str]:
    for kind, what in (
        ("unknown", "unknown to the tokeniser"),
        ("spelt_out", "spelt out letter by letter"),
    ):
        for name, split in splits.items():
            for side in SIDES:
                found, words = split[side][kind], split[side]["words"]
                if not found["count"]:
                    continue
                yield (
                    f"{name}: {found['count']:,} of {words:,} {side} words "
                    f"({_share(found['count'], words)}) {what}"
                )
                for word, places in list(found["most"].items())[:SHOWN]:
                    yield f"  {places['count']:>7,} x {_cut(word)}  {_places(places)}"


def _describe_characters(splits: dict[str, Any]) -> Iterator[str]:
    for name, split in splits.items():
        for side in SIDES:
            for character, found in split[side]["characters"].items():
                yield (
                    f"{name} {side}: {character}, {found['count']:,} in "
                    f"{found['pairs']:,} {_plural(found['pairs'], 'sentence')}: "
                    + _places(found)
                )
            if split[side]["blank"]["pairs"]:
                found = split[side]["blank"]
                yield f"{name} {side}: {found['pairs']:,} blank: {_places(found)}"


def _describe_repeats(splits: dict[str, Any]) -> Iterator[str]:
    for name, split in splits.items():
        found = split["repeated_pairs"]
        if found["extra"]:
            yield f"{name}: {found['extra']:,} {_plural(found['extra'], 'pair')} again"
            yield from _groups(found, "source")
        for side, other in (SIDES, SIDES[::-1]):
            found = split[side]["ambiguous"]
            if found["texts"]:
                yield (
                    f"{name}: {found['texts']:,} {_plural(found['texts'], side)} with "
                    f"several {other}s, in {found['pairs']:,} different pairs"
                )
                yield from _groups(found, side)


def _groups(found: dict[str, Any], side: str) -> Iterator[str]:
    for group in found["most"][:SHOWN]:
        places = _places({"places": group["places"], "pairs": group["pairs"]})
        yield f"  {group['pairs']:>5,} x {_cut(group['examples'][0][side])}  {places}"


# Words and figures ----------------------------------------------------------------


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join(
        f"{title if number == 0 else '':<12}{line}" for number, line in enumerate(lines)
    )


def _average(counts: dict[int, int]) -> float:
    total = sum(int(length) * count for length, count in counts.items())
    return total / max(sum(counts.values()), 1)


def _bar(share: float) -> str:
    """A bar of up to BARS columns; the least that is not nothing is a thin line."""
    eighths = round(8 * BARS * share) or (1 if share else 0)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def _cut(text: str, width: int = QUOTE) -> str:
    return f'"{text if len(text) <= width else text[: width - 3] + "..."}"'


def _place(place: Sequence) -> str:
    file, line = place
    return f"{Path(file).name}:{line}"


def _places(found: dict[str, Any]) -> str:
    """The first lines, by file; and how many more there are."""
    shown, said, before = found["places"][:SHOWN], [], None
    for file, line in shown:
        said.append(_place((file, line)) if file != before else f":{line}")
        before = file
    more = found["pairs"] - len(shown)
    return ", ".join(said) + (f" and {more:,} more" if more else "")


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.2g} %"
