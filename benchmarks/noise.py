"""Translate text with typos, capitals, symbols and addresses by a trained model.

    python benchmarks/noise.py --workdir=runs/mine --source=test.en --reference=test.de
        [--checkpoint=3200] [--sentences=500]

Prints lower-cased BLEU of the text as it is, with one typo a sentence, in capitals, and
with a capital in each word. Then it inserts a symbol, a URL, a number of 9 digits or a
placeholder into each of --sentences sentences, and counts the translations that keep
the insertion: in plain lines, and in a document. One seed draws everything.
"""

import functools
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sacrebleu.metrics import BLEU

from benchmarks import harness
from jaxformer import Translator
from jaxformer.system.errors import InputError
from jaxformer.text.lines import read_lines

SYMBOLS = "😀🎉🚀👍🔥★☂♫∑≈Ωж日本ひ한☃♞✓➔₿¶🍕🐶✈"
PLACEHOLDERS = "{name}", "%s", "%1$d", "{{ x }}", "{0}", "%(count)s"
SITES, PAGES = ("example", "tatoeba", "kiwi"), ("a", "docs", "faq")


def url(random: Random) -> str:
    return f"https://www.{random.choice(SITES)}.org/{random.choice(PAGES)}/{random.randrange(1000)}"


INSERTED: dict[str, Callable[[Random], str]] = {
    "symbol": lambda random: random.choice(SYMBOLS),
    "URL": url,
    "number": lambda random: str(random.randrange(10**8, 10**9)),
    "placeholder": lambda random: random.choice(PLACEHOLDERS),
}


def insert(text: str, what: str, random: Random) -> str:
    """Put `what` between two words, or at an end."""
    words = text.split(" ")
    place = random.randint(0, len(words))
    return " ".join([*words[:place], what, *words[place:]])


def typo(text: str, random: Random) -> str:
    """Exchange two letters that are neighbours, leave one out, or repeat one."""
    places = [n for n in range(len(text) - 1) if text[n : n + 2].isalpha()]
    if not places:
        return text
    at, kind = random.choice(places), random.randrange(3)
    first, second = text[at : at + 2]
    changed = (second + first, second, first * 2 + second)[kind]
    return text[:at] + changed + text[at + 2 :]


CHANGES: dict[str, Callable[[str, Random], str]] = {
    "as it is": lambda text, random: text,
    "one typo a sentence": typo,
    "IN CAPITALS": lambda text, random: text.upper(),
    "With A Capital In Each Word": lambda text, random: text.title(),
}


def kept(
    translator: Translator, sources: Sequence[str], sentences: int, random: Random
) -> dict[str, dict[str, int]]:
    """Count sentences, and translations that keep the insertion, by its kind."""
    chosen, found = random.sample(sources, sentences), {}
    for number, (kind, draw) in enumerate(INSERTED.items()):
        own = chosen[number :: len(INSERTED)]
        things = [draw(random) for _ in own]
        pairs = zip(own, things, strict=True)
        lines = [insert(text, thing, random) for text, thing in pairs]
        document = translator.translate_document("\n".join(lines), markup="txt")
        found[kind] = {
            "sentences": len(lines),
            "lines": sum(map(str.__contains__, translator(lines), things)),
            "document": sum(map(str.__contains__, document.split("\n"), things)),
        }
    return found


def measure(options: Namespace) -> dict:
    if not (options.workdir and options.source and options.reference):
        raise InputError("give --workdir, --source and --reference")
    sources, references = (
        [*read_lines(each)] for each in (options.source, options.reference)
    )
    if len(sources) != len(references) or len(sources) < options.sentences:
        raise InputError(
            f"{len(sources)} sources and {len(references)} references; as many of both "
            f"are needed, and at least {options.sentences} (--sentences)"
        )
    translator = Translator(options.workdir, checkpoint=options.checkpoint or None)
    metric, random, bleu = BLEU(lowercase=True), Random(1), {}
    for name, change in CHANGES.items():
        output = translator([change(text, random) for text in sources])
        bleu[name] = round(metric.corpus_score(output, [references]).score, 2)
    counts = kept(translator, sources, options.sentences, random)
    harness.print_table("text | BLEU", [f"{k} | {v:.2f}" for k, v in bleu.items()])
    harness.print_table(
        "inserted | sentences | kept in lines | kept in a document",
        [
            f"{kind} | {' | '.join(map(str, each.values()))}"
            for kind, each in counts.items()
        ],
    )
    return {"bleu": bleu, "kept": counts}


main = functools.partial(
    harness.run, __doc__, measure, workdir=None, source=None, reference=None,
    checkpoint=0, sentences=500,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
