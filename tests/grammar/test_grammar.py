"""The built-in corpus: correct German, disjoint splits, and every phenomenon."""

import hashlib
import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxformer import grammar
from jaxformer.grammar import generate, is_held_out
from jaxformer.grammar.lexicon import DESCRIPTIONS, NOUNS, VERBS
from jaxformer.system.errors import InputError

VERB = {verb.english: verb for verbs in VERBS.values() for verb in verbs}


def rows(table):
    return [re.split(r" \| ?", line.strip()) for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def corpus():
    sizes = {"train": 20_000, "dev": 400, "test": 400, "unseen": 400}
    return {split: list(generate(split, size, 1)) for split, size in sizes.items()}


def words_of(pair):
    return re.findall(r"[\w'-]+", pair.source.lower())


def test_a_seed_decides_the_pairs_and_a_larger_count_continues(corpus):
    first = list(generate("train", 300, 5))
    start = time.process_time()
    assert list(generate("train", 4_000, 5))[:300] == first
    assert time.process_time() - start < 2.0  # each run of the demo generates them
    assert list(generate("train", 300, 6)) != first
    # Published scores are those of these sentences.
    assert hashlib.sha256(repr(corpus).encode()).hexdigest()[:8] == "ddfc5ce6"
    with pytest.raises(InputError, match="validation"):
        next(generate("validation", 1, 0))


def test_few_pairs_are_drawn_once(monkeypatch):
    found = list(generate("dev", 30, seed=77))
    with monkeypatch.context() as patch:
        patch.setattr(grammar, "_drawn", None)
        assert list(generate("dev", 30, seed=77)) == found
    monkeypatch.setattr(grammar, "_MOST_KEPT", 20)
    assert list(generate("dev", 30, seed=77)) == found


def test_threads_draw_the_same_pairs():
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda _: list(generate("train", 5_000, seed=78)), range(2))
    first, second = found
    assert first == second


def test_splits_share_no_sentence_and_a_sentence_has_one_translation(corpus):
    split_of, translations = {}, {}
    for split, pairs in corpus.items():
        for pair in itertools.chain(pairs, generate(split, len(pairs) // 4, 2)):
            assert split_of.setdefault(pair.source, split) == split
            assert translations.setdefault(pair.source, pair.target) == pair.target
            # English readers would take "They read a book." for the past.
            assert not re.match(r"(I|You|We|They) (read|cost|put) ", pair.source)


@pytest.mark.parametrize(
    ("english", "german"),
    rows(r"""
        in the garden[ .?] | im Garten
        (?<!next) to the (park|school)[ .?] | (zum Park|zur Schule)
        \bof the (man|king|boy|son|uncle|father)[ .?] | \b(vom|an den) \w
        twenty-one (euros|years) | einundzwanzig (Euro|Jahre)
        ^I know that .*\. | ^Ich weiß, dass
        tries to open | versucht, .* aufzumachen\.$
        \b(do|does) not (open|close) the \w+\. | (die|das) \w+ nicht (auf|zu)
        (does|do) not (need|buy|see) (a|an) | (^K|k)ein
        ^(Because|If|When|While|Although) [^,]*, he\b | , \w+ er\b
        ^The \w+ who (is|was) \w+ | ^(Der|Die|Das) \w+, (der|die|das) .* (ist|war),
        ^Whom (do|does|did) \w+ (help|thank|trust|answer) | ^Wem
        ^Where (do|does|did) \w+ (go|travel|drive)\b | ^Wohin
        (give|send|show|lend)s? him | \bihm\b
        (see|visit|meet|hear)s? him | \bihn\b
        the (man|king)'s \w+\. | des (Mannes|Königs)
        's (\w+ )?(dogs|cats|horses) | ([Dd]ie|den) (\w+ )?(Hunde|Katze|Pferde)n? \w+
        \b(must|Must) ([a-z]+ )?not\b | never
        \bI [a-z]+ (me|us)\b | never
        \b(not|cannot) (see|buy|need|use) (every|some) | never
        \b(him|them|me|us) (bread|milk|tea|cheese|meat|rice|butter)\b | never
        \b(yesterday|recently|last week) (in|at|with|for|to)\b | never
    """),
)
def test_german_follows_the_rules_of_its_grammar(corpus, english, german):
    pairs = [pair for pair in corpus["train"] if re.search(english, pair.source)]
    assert bool(pairs) == (german != "never")
    assert [pair for pair in pairs if not re.search(german, pair.target)] == []


def test_unseen_shows_known_words_in_combinations_absent_from_train(corpus):
    combinations = {
        (word, noun.english)
        for kind, nouns in NOUNS.items()
        for word in [adjective for adjective, _ in DESCRIPTIONS[kind]]
        + [v.english for v in VERB.values() if kind in v.objects]
        + [v.english for v in VERBS["motion"] if kind == "place"]
        for noun in nouns
    }
    held_out = set(filter(is_held_out, combinations))
    known = set(itertools.chain(*map(words_of, corpus["train"])))
    for split, pairs in corpus.items():
        shown = set()
        for pair in pairs:
            words = words_of(pair)
            assert known.issuperset(words)
            shown.update(itertools.pairwise(words))
            text = pair.source.lower()
            between = r"(\w+) (?:(?:in)?to )?(?:the|an?) (\w+)\b(?!')"
            shown.update(re.findall(between, text))
            asked = re.findall(r"how many (\w+)s (?:do|does|did) \w+ (\w+)", text)
            shown.update((verb, noun) for noun, verb in asked)
        assert bool(shown & held_out) == (split == "unseen")


PHENOMENA = """
accusative dative genitive adjective plural number possessive pronoun weak_noun
mass_noun negation question verb_second verb_final separable modal perfect
relative_clause infinitive_clause comparative coordination location direction
"""


def test_every_split_shows_every_phenomenon_in_well_formed_text(corpus):
    for pairs in corpus.values():
        assert {*itertools.chain(*(p.phenomena for p in pairs))} == {*PHENOMENA.split()}
        for pair in pairs:
            for text in (pair.source, pair.target):
                assert re.fullmatch(r"[A-ZÄÖÜ](?!.*(  | [,.?])).*[.?]", text)
            assert pair.source[-1] == pair.target[-1]
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", pair.source.lower())
            assert not re.search(r"\b(in dem|in das|an dem|zu dem)\b", pair.target)
