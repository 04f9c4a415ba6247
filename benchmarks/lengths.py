"""BLEU by the length of the source, for captions and for captions joined.

    python benchmarks/lengths.py --text=data/multi30k --runs=runs/a,runs/b
    python benchmarks/lengths.py --text=data/multi30k --join=data/multi30k_joined
    python benchmarks/lengths.py --found=a.txt,b.txt --output=lengths.svg

The first form translates each text of 1, 2, ... 7 consecutive test captions with each
run, and scores texts of about the same number of source words together, as figure 2 of
Bahdanau et al. (2015) does. The second writes a folder in which the captions of every
split are joined by 1, 2, ... --most in turn, to train on: a model that has seen single
captions ends after the first sentence. The third draws what the first has
printed: a line for each run, and of runs called NAME_1, NAME_2, ... the mean, with the
lowest and the highest.
"""

import argparse
import bisect
import functools
import gzip
import itertools
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from jaxformer import Translator
from jaxformer.evaluation.metrics import make_bleu
from jaxformer.system.errors import InputError
from jaxformer.text.lines import read_lines

EDGES = 0, 8, 12, 16, 20, 30, 40, 50, 60, 70, 80  # words of the source
MOST_JOINED = 7  # captions of a test text
TEST = "test_2016_flickr"
SPLITS = "train", "val", TEST
LANGUAGES = "en", "de"


def path_of(folder: Path, split: str, language: str) -> Path:
    """Return the file of a split, plain or .gz. Raises InputError if there is none."""
    for ending in ("", ".gz"):
        path = folder / f"{split}.{language}{ending}"
        if path.exists():
            return path
    raise InputError(f"{folder} has no {split}.{language} and no {split}.{language}.gz")


def read_pairs(folder: Path, split: str) -> list[tuple[str, str]]:
    """Read the sentence pairs of a split."""
    sides = (read_lines(path_of(folder, split, each)) for each in LANGUAGES)
    return list(zip(*sides, strict=True))


def joined(
    pairs: Sequence[tuple[str, str]], counts: Iterator[int]
) -> Iterator[tuple[str, str]]:
    """Join the next 1, 2, ... pairs by the next count; fewer pairs are left out."""
    begin = 0
    while len(part := pairs[begin : begin + (count := next(counts))]) == count:
        yield tuple(map(" ".join, zip(*part, strict=True)))
        begin += count


def by_length(
    pairs: Sequence[tuple[str, str]],
) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """Group joined pairs by the words of the source: more than, up to."""
    found = defaultdict(list)
    for count in range(1, MOST_JOINED + 1):
        for pair in joined(pairs, itertools.repeat(count)):
            n = bisect.bisect_left(EDGES, len(pair[0].split()))
            if n < len(EDGES):
                found[EDGES[n - 1], EDGES[n]].append(pair)
    return dict(sorted(found.items()))


def write_joined(text: Path, output: Path, most: int) -> dict[str, int]:
    """Write the splits joined by 1 to `most` in turn; returns the texts of each."""
    output.mkdir(parents=True, exist_ok=True)
    written = {}
    for split in SPLITS:
        pairs = list(
            joined(read_pairs(text, split), itertools.cycle(range(1, most + 1)))
        )
        for language, side in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
            with gzip.open(output / f"{split}.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in side)
        written[split] = len(pairs)
    return written


def lines_of(found: Sequence[dict]) -> list[dict]:
    """Return a point for each length and name: mean, lowest and highest BLEU."""
    scores = defaultdict(list)
    for name, values in [item for each in found for item in each["bleu"].items()]:
        scores[re.sub(r"_\d+$", "", name)].append(values)
    return [
        {"words": words[1], "run": name, "mean": statistics.mean(each),
         "lowest": min(each), "highest": max(each)}
        for name, runs in scores.items()
        for words, each in zip(found[0]["words"], zip(*runs, strict=True), strict=True)
    ]  # fmt: skip


def draw(points: list[dict], output: Path) -> None:
    """Draw BLEU by the number of source words."""
    import altair as alt

    from jaxformer.reports import page

    names = list(dict.fromkeys(point["run"] for point in points))
    colours = alt.Scale(range=list(page.COLOURS[: len(names)]))
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("words:Q", title="words of the source, up to"),
        color=alt.Color("run:N", sort=names, scale=colours, title=None),
    )
    lines = base.mark_line(point=True).encode(y=alt.Y("mean:Q", title="BLEU"))
    bands = base.mark_area(opacity=0.15).encode(y="lowest:Q", y2="highest:Q")
    chart = alt.layer(bands, lines).properties(width=480, height=260)
    page.write(output, page.picture(chart, "svg"))


def measure(options: argparse.Namespace) -> dict:
    if options.output:
        found = [
            json.loads(Path(each).read_text().splitlines()[-1])
            for each in options.found
        ]
        draw(lines_of(found), options.output)
        return {"drawn": str(options.output)}
    if options.text is None:
        raise InputError("give --text, the folder of Multi30k")
    if options.join:
        return {"joined": write_joined(options.text, options.join, options.most)}
    groups = by_length(read_pairs(options.text, TEST))
    bleu = make_bleu(LANGUAGES[1])
    scores: dict[str, list[float]] = {}
    for folder in filter(None, options.runs):
        translator = Translator(folder, split_sentences=False)
        scores[Path(folder).name] = [
            bleu.corpus_score(
                [
                    found[0].text
                    for found in translator.translate([s for s, _ in group])
                ],
                [[target for _, target in group]],
            ).score
            for group in groups.values()
        ]
    rows = [
        " | ".join([f"{more + 1}-{most}", str(len(group)), *(f"{x:.1f}" for x in each)])
        for (more, most), group, *each in zip(
            groups, groups.values(), *scores.values(), strict=True
        )
    ]
    harness.print_table(" | ".join(["words", "texts", *scores]), rows)
    words = [list(length) for length in groups]
    signature = str(bleu.get_signature()) if scores else ""
    return {"words": words, "bleu": scores, "signature": signature}


main = functools.partial(
    harness.run, __doc__, measure, text=None, runs=[], join=None, most=6, found=[],
    output=None,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
