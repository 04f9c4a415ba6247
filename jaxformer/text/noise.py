"""Change training pairs at random, in ways in which users' text differs from a corpus.

Some changes teach a model to copy unknown text: they put the same emoji or address at
the same place of both sides, as OpusTrainer (Bogoychev et al. 2023) does. Others teach
it that capitals, a missing full stop and typos change no meaning.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

from jaxformer.text.sources import Pair

_EMOJI = 0x1F300, 0x1F650  # all are assigned in Unicode 9
# First and last letter of alphabets; all letters between are composed (NFC).
_ALPHABETS = "az", "az", "αω", "ая", "את", "アン", "一龥"
_STOP = re.compile(r"(?<=[^\s.。।])\s*[.。।]\s*$")  # no ellipsis


def noised(
    pair: Pair, shares: Mapping[str, float], symbols: Sequence[str], random: Random
) -> Pair:
    """Change a pair, which has no tag, by one kind of noise, or return it as it is.

    `shares` are the probabilities of the kinds, as in `data.noise`. `symbols` are
    placeholders, whose letters stay as they are.
    """
    drawn = random.random()
    for kind, share in shares.items():
        drawn -= share
        if drawn < 0:
            return _KINDS[kind](pair, symbols, random)
    return pair


def _copy(pair: Pair, symbols: Sequence[str], random: Random) -> Pair:
    """Insert the same text at the same relative position of both sides."""
    kinds = [_emoji, _number, _url, _address, _word]
    if symbols:
        kinds.append(lambda random: random.choice(symbols))
    thing, place = random.choice(kinds)(random), random.random()
    sides = []
    for words in map(str.split, pair):
        at = round(place * len(words))
        sides.append(" ".join([*words[:at], thing, *words[at:]]))
    return sides[0], sides[1]


def _emoji(random: Random) -> str:
    return chr(random.randrange(*_EMOJI))


def _number(random: Random) -> str:
    digits = str(random.randrange(10 ** random.randint(1, 8)))
    return digits + random.choice(["", "", f".{random.randrange(100)}"])


def _word(random: Random, alphabets: Sequence[str] = _ALPHABETS) -> str:
    first, last = map(ord, random.choice(alphabets))
    count = random.randint(3, 9) if last < 0x3000 else random.randint(1, 4)
    return "".join(chr(random.randint(first, last)) for _ in range(count))


def _domain(random: Random) -> str:
    return f"{_word(random, ['az'])}.{random.choice(['com', 'org', 'net', 'de'])}"


def _url(random: Random) -> str:
    return f"https://{_domain(random)}/{_word(random, ['az'])}"


def _address(random: Random) -> str:
    return f"{_word(random, ['az'])}@{_domain(random)}"


def _title(text: str) -> str:
    return re.sub(r"(?<!\S)\w", lambda letter: letter[0].upper(), text)


def _cased(change: Callable[[str], str]) -> Callable[..., Pair]:
    def changed(pair: Pair, symbols: Sequence[str], random: Random) -> Pair:
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        parts = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        source, target = (
            "".join(
                part if number % 2 else change(part)
                for number, part in enumerate(parts.split(side))
            )
            for side in pair
        )
        return source, target

    return changed


def _no_stop(pair: Pair, symbols: Sequence[str], random: Random) -> Pair:
    source, target = (_STOP.sub("", side) for side in pair)
    return source, target


def _typo(pair: Pair, symbols: Sequence[str], random: Random) -> Pair:
    """Exchange two letters of a word of the source, leave one out or repeat one."""
    words = pair[0].split()
    usual = [n for n, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    usual = [n for n in usual if words[n] not in symbols]
    if usual:
        number = random.choice(usual)
        word = words[number]
        at = random.randint(1, len(word) - 2)
        first, second = word[at], word[at + 1]
        letters = random.choice([second + first, second, first + first + second])
        words[number] = word[:at] + letters + word[at + 2 :]
    return " ".join(words), pair[1]


_KINDS = {
    "copy": _copy,
    "upper_case": _cased(str.upper),
    "title_case": _cased(_title),
    "no_stop": _no_stop,
    "typo": _typo,
}
