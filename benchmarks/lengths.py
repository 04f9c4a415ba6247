"""BLEU by the length of the source, for captions and for captions joined.

    python benchmarks/lengths.py --text=data/multi30k --runs=runs/a,runs/b
    python benchmarks/lengths.py --text=data/multi30k --join=data/multi30k_joined

The first form translates each text of 1, 2, ... 7 consecutive test captions with each
run, and scores texts of about the same number of source words together, as figure 2 of
Bahdanau et al. (2015) does. The second writes a folder in which the captions of every
split are joined by 1, 2, ... 6 in turn, to train on: a model that has seen single
captions ends after the first sentence.
"""

import argparse
import bisect
import functools
import gzip
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from jaxformer import Translator
from jaxformer.data.text import read_lines
from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import make_bleu

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


def write_joined(text: Path, output: Path) -> dict[str, int]:
    """Write the splits joined by 1 to 6 in turn; returns the texts of each."""
    output.mkdir(parents=True, exist_ok=True)
    written = {}
    for split in SPLITS:
        pairs = list(joined(read_pairs(text, split), itertools.cycle(range(1, 7))))
        for language, side in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
            with gzip.open(output / f"{split}.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in side)
        written[split] = len(pairs)
    return written


def measure(options: argparse.Namespace) -> dict:
    if options.text is None:
        raise InputError("give --text, the folder of Multi30k")
    if options.join:
        return {"joined": write_joined(options.text, options.join)}
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
    harness.run, __doc__, measure, text=None, runs=[], join=None,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
