"""What --mode=check says about the text: first what to look at, then all of it.

Words for what `jaxformer.inspection.corpus` finds; used by `jaxformer.commands.check`.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxformer.inspection.bars import average, draw_histograms

SIDES = ("source", "target")
SHOWN = 5  # examples of each finding; the JSON has more
WIDTH = 100  # columns, of which the first 12 name the section
LEAST_QUOTE = 30  # characters

# Below these shares of a split's pairs or words, what may be chance is shown, but is no
# thing to look at: every corpus has sentences of names, and a few rare characters.
ODD_SENTENCES = 0.001
UNKNOWN_WORDS = 0.001
SAME_ON_BOTH_SIDES = 0.005
ONE_SENTENCE = 0.005
LEAST_TIMES = 20

VERDICTS = {
    "swapped": "with source and target swapped",
    "source_in_target_language": "with a source in the target's language",
    "target_in_source_language": "with a target in the source's language",
    "source_in_neither": "with a source in neither language, or an unusual one",
    "target_in_neither": "with a target in neither language, or an unusual one",
}
OVERLAPS = {"pair": "whole", "source": "by the source", "target": "by the target"}
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
    reasons = dict.fromkeys(corpus["left_out"].values())  # each of them once
    left_out = [f"not looked at: {reason}" for reason in reasons]
    yield _section("corpus", [first, *(f"- {t}" for t in things), *left_out])
    yield _section("lengths", _describe_lengths(corpus["splits"]))
    for title, lines in find_details(corpus).items():
        yield _section(title, lines)


def find_details(corpus: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of each further section that has something to say."""
    splits = corpus["splits"]
    sections = {
        "languages": list(_describe_languages(splits)),
        "overlap": list(_describe_overlap(corpus)),
        "words": list(_describe_words(splits)),
        "characters": list(_describe_characters(splits)),
        "repeats": list(_describe_repeats(splits)),
    }
    return {title: lines for title, lines in sections.items() if lines}


def find_things(corpus: dict[str, Any], *, deduplicate: bool) -> Iterator[str]:
    """What a person should look at before training, a line each; the worst first."""
    for name, kinds in corpus["overlap"].items():
        pairs, sources = kinds["pair"]["pairs"], kinds["source"]["pairs"]
        of = corpus["splits"][name]["pairs"]
        if sources or pairs:
            yield (
                f"{name}: {_count(sources, of)} with a source that train has too, "
                f"{pairs:,} with the same target"
            )
    for name, split in corpus["splits"].items():
        yield from _things_of(name, split, deduplicate and name == "train")


def _things_of(name: str, split: dict[str, Any], deduplicated: bool) -> Iterator[str]:
    pairs = split["pairs"]
    for verdict, what in VERDICTS.items():
        count = split.get("languages", {}).get(verdict, {}).get("pairs", 0)
        chance = ODD_SENTENCES * pairs if verdict.endswith("neither") else 0
        if count > chance + 3 * chance**0.5:
            yield f"{name}: {_count(count, pairs)} {what}"
    if split["identical_sides"]["pairs"] > SAME_ON_BOTH_SIDES * pairs:
        count = split["identical_sides"]["pairs"]
        yield f"{name}: {_count(count, pairs)} with the same text on both sides"
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


def figures(corpus: Any) -> Any:
    """The report without the text that it quotes, for a line of JSON."""
    if isinstance(corpus, dict):
        return {
            key: figures(value)
            for key, value in corpus.items()
            if not (key in SIDES and isinstance(value, str))
        }
    if isinstance(corpus, list):
        return [figures(value) for value in corpus]
    return corpus


# Sections -------------------------------------------------------------------------


def _describe_lengths(splits: dict[str, Any]) -> Iterator[str]:
    for name, split in splits.items():
        words = [split[side]["lengths"]["words"] for side in SIDES]
        means = " and ".join(f"{average(counts):.1f}" for counts in words)
        longest = " and ".join(f"{max(counts):,}" for counts in words)
        yield (
            f"{name}, {split['pairs']:,} pairs: {means} words a sentence, at most "
            f"{longest}"
        )
        if name != "train":
            continue
        yield from draw_histograms("words", words)
        pieces = [split[side]["lengths"]["pieces"] for side in SIDES]
        yield from draw_histograms("pieces", pieces)
        if percentiles := split["ratio"]["percentiles"]:
            least, half, most = (percentiles[percent] for percent in (1, 50, 99))
            yield (
                f"target pieces for a source piece: median {half:.2f}, 1 % of pairs "
                f"below {least:.2f}, 1 % above {most:.2f}"
            )


def _describe_languages(splits: dict[str, Any]) -> Iterator[str]:
    for name, split in splits.items():
        for verdict, what in VERDICTS.items():
            found = split.get("languages", {}).get(verdict, {"pairs": 0})
            if not found["pairs"]:
                continue
            yield f"{name}: {_count(found['pairs'], split['pairs'])} {what}:"
            for example in found["examples"][:SHOWN]:
                place = _place(example["place"])
                yield _with_quote(f"  {place}  ", example["source"])
                yield _with_quote(f"  {'':{len(place)}}  ", example["target"])
        if count := split["identical_sides"]["pairs"]:
            yield f"{name}: {_count(count, split['pairs'])} the same on both sides:"
            for example in split["identical_sides"]["examples"][:SHOWN]:
                yield _with_quote(f"  {_place(example['place'])}  ", example["source"])


def _describe_overlap(corpus: dict[str, Any]) -> Iterator[str]:
    for name, kinds in corpus["overlap"].items():
        of = corpus["splits"][name]["pairs"]
        if not any(found["pairs"] for found in kinds.values()):
            continue
        yield f"of {of:,} pairs of {name}, train has " + ", ".join(
            f"{kinds[kind]['pairs']:,} {what}" for kind, what in OVERLAPS.items()
        )
        whole = {example["place"][1] for example in kinds["pair"]["examples"]}
        for kind in ("pair", *SIDES):
            examples = kinds[kind]["examples"]
            if kind != "pair":  # those that are shown as a pair are not shown again
                examples = [e for e in examples if e["place"][1] not in whole]
            for example in examples[:SHOWN]:
                text = example["target" if kind == "target" else "source"]
                places = f"{_place(example['place'])} = {_place(example['train'])}"
                yield _with_quote(f"  {kind:<6}  {places}  ", text)


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
                    yield f"  {places['count']:>7,} x {word}  {_places(places)}"


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
            pairs = f"{found['extra']:,} {_plural(found['extra'], 'pair')}"
            yield f"{name}: {pairs} that came before"
            yield from _groups(found, "source")
        for side, other in (SIDES, SIDES[::-1]):
            found = split[side]["ambiguous"]
            if found["texts"]:
                yield (
                    f"{name}: {found['texts']:,} {_plural(found['texts'], side)} with "
                    f"several {other}s, in {found['pairs']:,} different pairs"
                )
                if name == "train":
                    yield from _groups(found, side)


def _groups(found: dict[str, Any], side: str) -> Iterator[str]:
    for group in found["most"][:SHOWN]:
        yield _with_quote(
            f"  {group['pairs']:>5,} x ", group[side], _places(group, most=3)
        )


# Words and figures ----------------------------------------------------------------


def _section(title: str, lines: Iterable[str]) -> str:
    """The lines after the section's name; a long one goes on below, further in."""
    broken: list[str] = []
    for line in lines:
        inner = " " * (len(line) - len(line.lstrip()) + 2)
        broken += textwrap.wrap(
            line,
            WIDTH - 12,
            subsequent_indent=inner,
            drop_whitespace=True,
            break_on_hyphens=False,
        )
    return "\n".join(
        f"{title if number == 0 else '':<12}{line}"
        for number, line in enumerate(broken)
    )


def _with_quote(before: str, text: str, after: str = "") -> str:
    """A line with a quotation that is cut to what there is room for."""
    room = max(WIDTH - 12 - len(before) - len(after) - 4, LEAST_QUOTE)
    if len(text) > room:
        text = text[: room - 3] + "..."
    return f'{before}"{text}"  {after}'.rstrip()


def _place(place: Sequence) -> str:
    file, line = place
    return f"{Path(file).name}:{line}"


def _places(found: dict[str, Any], most: int = SHOWN) -> str:
    """The first lines, by file; and how many more there are."""
    shown, said, before = found["places"][:most], [], None
    for file, line in shown:
        said.append(_place((file, line)) if file != before else f":{line}")
        before = file
    more = found["pairs"] - len(shown)
    return ", ".join(said) + (f" and {more:,} more" if more else "")


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _count(pairs: int, of: int) -> str:
    return f"{pairs:,} {_plural(pairs, 'pair')} of {of:,}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.2g} %"
