"""Sentences and lines around a stand-in for the engine."""

import copy
import dataclasses
import math
from unittest import mock

import numpy as np
import pytest

from jaxformer.decoding import all_processes, parts
from jaxformer.decoding import engine as engine_module
from jaxformer.decoding.all_processes import translate_all, translate_share
from jaxformer.decoding.engine import Task
from jaxformer.decoding.glossary import Glossary
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.parts import Hypothesis, sentences_of
from jaxformer.decoding.search import SearchResult
from jaxformer.decoding.text_pipeline import Direction, TextPipeline, numbered
from jaxformer.runs.texts import with_tag
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS, UNK
from tests.decoding.tiny import (
    EXTRA,
    MODEL,
    SENTENCES,
    Numbers,
    open_translator,
    padded,
)
from tests.models.tiny import model_of


class Echo:
    """A stand-in for an engine: a translation is the prefix and the source of a task.

    It answers the last submitted task first, with two hypotheses, the better one last.
    """

    load = 1, 0

    def __init__(self, programs, *_, with_phrases=False, **__):
        self.tasks = []
        kind = "with phrases" if with_phrases else "without"
        self.seen = vars(programs).setdefault(kind, [])

    def submit(self, task):
        self.tasks.append(task)
        self.seen.append(task._replace(done=None))

    def advance(self, most=None):
        if not self.tasks:
            return False
        task = self.tasks.pop()
        ids = [*task.prefix, *task.source]
        n = np.array([len(ids) - len(task.prefix), len(ids)])
        tokens = padded([task.source, ids], len(ids) + 3)
        sums = -np.arange(1.0, tokens.shape[1] + 1) * np.ones((2, 1))
        task.done(SearchResult(tokens, n, -10.0 / n, -20.0 / n, sums))
        return True


def seen(translator, kind="without") -> list[Task]:
    """The tasks of its searches without phrases, or of those with phrases."""
    return vars(translator.programs).get(kind, [])


@pytest.fixture
def make_echo(monkeypatch):
    monkeypatch.setattr(engine_module, "Engine", Echo)
    return open_translator


def test_a_string_gives_a_string_and_a_list_a_list(make_echo):
    echo = make_echo()
    assert echo("5 6") == "5 6"
    assert echo(["5 6", "7", "8 9 10"]) == ["5 6", "7", "8 9 10"]
    assert echo([]) == echo.translate([]) == []
    (found,) = echo.translate(["5 6"], prefixes=["7"])
    assert echo.translate("5 6", prefixes="7") == found
    for prefixes in ([], ["7", "8"], "7"):
        with pytest.raises(InputError, match="for 1 text; give a list"):
            echo.translate(["5 6"], prefixes=prefixes)


@pytest.mark.parametrize("n_best", [1, 2, 3])
def test_hypotheses_are_sorted_and_cut(make_echo, n_best):
    (found,) = make_echo(n_best=n_best).translate(["5 6"], prefixes=["7"])
    source = ["5", "6", "</s>"]
    each = [-1.0] * 4
    best = Hypothesis("7 5 6", -2.5, -5.0, 4, source, ["7", *source], each)
    second = Hypothesis("5 6", -10 / 3, -20 / 3, 3, source, source, each[:3])
    assert found == [best, second][:n_best]


def test_hypotheses_have_different_texts_unless_they_are_samples(make_echo):
    """Without a prefix the stand-in finds one text twice; the better one is kept."""
    (found,) = make_echo(n_best=2).translate(["5 6"])
    assert [(each.text, each.score) for each in found] == [("5 6", -10 / 3)]
    (found,) = make_echo(n_best=2, temperature=1.0).translate(["5 6"])
    assert [each.text for each in found] == ["5 6", "5 6"]
    # A part with fewer texts repeats its last beside those of another part.
    (found,) = make_echo(n_best=2, split_sentences=True).translate(
        ["5 6. 7."], prefixes=["9"]
    )
    assert [each.text for each in found] == ["9 5 6 7", "5 6 7"]


def test_of_equal_texts_the_best_keeps_its_rank(make_echo, monkeypatch):
    def advance(engine, _=None):
        if not engine.tasks:
            return False
        tokens = padded([[word, EOS] for word in (5, 6, 5)], 4)
        scores = np.array([-1.0, -2.0, -3.0])
        found = SearchResult(tokens, np.full(3, 2), scores, scores, 0.0 * tokens)
        engine.tasks.pop().done(found)
        return True

    monkeypatch.setattr(Echo, "advance", advance)
    (found,) = make_echo(n_best=3).translate(["7"])
    assert [(each.text, each.score) for each in found] == [("5", -1.0), ("6", -2.0)]


def test_blank_sentences_stay_blank_and_take_no_slot(make_echo):
    echo = make_echo(n_best=2)
    blank = ["", "  ", "\t", "\x00", "\u2581", "\u00ad", "\x1b\u2581 \x85", "\u00ad\n"]
    assert echo(["5", *blank, "6 7"]) == ["5", *[""] * len(blank), "6 7"]
    assert echo([">>5<<" + each for each in blank]) == [""] * len(blank)
    nothing = Hypothesis("", 0.0, 0.0, 0, [], [], [])
    assert echo.translate([" "], prefixes=["5"]) == [[nothing]]
    assert [len(task.source) for task in seen(echo)] == [3, 2]


def test_texts_of_unknown_characters_are_copied(make_echo, caplog):
    echo = make_echo(n_best=2, split_sentences=True)
    texts = ["☃ ☃☃!", "5 ☃", "6 7. ☃\n☃.", " "]
    assert echo(texts) == ["☃ ☃☃!", "5 1", "6 7 ☃\n☃.", ""]
    assert [task.source for task in seen(echo)] == [[6, 7, EOS], [5, UNK, EOS]]
    assert [each for each in caplog.messages if "character, copied: 1" in each]
    (copy,) = echo.translate("☃")
    assert (copy.is_copy, copy.tokens, copy.pieces) == (True, 0, [])
    given = {"prefixes": ["6"]}
    assert echo.translate(["☃"], **given)[0][0].text == "6 1"
    cut = make_echo(max_source_length=3)
    assert cut(["☃ ☃ ☃ ☃", "☃☃6☃☃☃7☃☃☃"]) == ["☃ ☃ ☃ ☃", "1 1 6 1 1 1 7 1 1 1"]


def test_a_task_has_the_limits_prefix_and_seed_of_its_sentence(make_echo):
    echo = make_echo(min_length=8, seed=2)
    echo.translate(["5 6 7 8", "9"], prefixes=["", "10 11"])
    translate_all(echo, ["12"], first=100, prefixes=[" ".join(["13"] * 20)])
    assert seen(echo) == [
        Task([5, 6, 7, 8, EOS], 5 + EXTRA, 8, [], 2_000_006, text="5 6 7 8"),
        # The least length is more than the limit would be.
        Task([9, EOS], 8, 8, [10, 11], 2_000_007, text="9"),
        # The prefix is longer than the limit would be.
        Task([12, EOS], 21, 8, [13] * 20, 2_000_106, text="12"),
    ]


def test_learned_positions_of_any_member_limit_all(make_echo):
    nine, six = (model_of(positions="learned", max_positions=n) for n in (9, 6))
    echo = make_echo(models=(MODEL, nine, six), seeds=(0, 1, 2), min_length=99)
    echo.translate(["5 6 7 8 9", "5"], prefixes=["10 11 12 13 14", ""])
    assert seen(echo) == [
        Task([5, 6, 7, 8, 9, EOS], 6, 6, [10, 11, 12, 13, 14], 0, text="5 6 7 8 9"),
        Task([5, EOS], 6, 6, [], 1, text="5"),
    ]
    with pytest.raises(InputError, match=r"line 2: the prefix has 7 .*more than 6"):
        echo.translate(["5", "6"], prefixes=["", "10 11 12 13 14 15"])
    assert echo("5 6 7 8 9 10") == "5 6 7 8 9 10"
    assert [len(task.source) for task in seen(echo)[2:]] == [6, 2]


def test_texts_with_phrases_have_a_search_of_their_own(make_echo):
    """The limit has room for a prefix, the phrases and the end."""
    echo = make_echo()
    phrases = [["8 9", "9 10", " ", "9"], [], [" ".join(["11"] * 9)], ["5"]]
    texts, prefixes = ["5 6", "7", "8", " "], ["8", "", "12", ""]
    found = echo.translate(texts, prefixes=prefixes, phrases=phrases)
    assert [each[0].text for each in found] == ["8 5 6", "7", "12 8", ""]
    assert [task.source for task in seen(echo)] == [[7, EOS]]
    tasks = {task.source[0]: task for task in seen(echo, "with phrases")}
    assert tasks[5].phrases == ((8, 9), (9, 10))
    assert tasks[5].max_length == 3 + EXTRA
    assert tasks[8].max_length == 1 + 9 + 1 > 2 + EXTRA
    echo.translate("5 6", phrases=["8"])
    assert seen(echo, "with phrases")[-1].phrases == ((8,),)


@pytest.mark.parametrize(
    ("options", "phrases", "error"),
    [
        ({}, "8", "phrases has one string for 1 text; give a list"),
        ({}, [["8"], []], "phrases has 2 for 1 text; give a list"),
        ({"split_sentences": True}, [["8"]], "translated in 2 parts; give each"),
    ],
)
def test_phrases_that_are_of_no_text_are_refused(make_echo, options, phrases, error):
    with pytest.raises(InputError, match=error):
        make_echo(**options).translate(["5 6. 7."], phrases=phrases)


def test_phrases_fit_the_positions_of_every_member(make_echo):
    seven = model_of(positions="learned", max_positions=7)
    echo = make_echo(models=(MODEL, seven), seeds=(0, 1))
    assert echo.translate("5", prefixes="6", phrases=["6 7", "8 9 10"])
    with pytest.raises(InputError, match="at least 8 pieces, more than 7; leave some"):
        echo.translate("5", prefixes="6", phrases=["7 8", "9 10 11 12"])


TERMS = Glossary(["six\t16", "six eight\t16 18", "snow\t☃|19", "ice\t☃"], "terms")


def test_a_sentence_has_the_phrases_of_its_own_terms(make_echo, caplog):
    """What cannot be met is left out, and logged once for each line."""
    echo = make_echo(glossary=TERMS, split_sentences=True)
    text = "5 six. 6 Six eight, six.\nIce 7 snow. 8 ice. 9."
    assert echo(["9", text]) == ["9", "5 6\n7 8 9"]
    phrased = {task.text: task.phrases for task in seen(echo, "with phrases")}
    assert phrased == {
        "5 six.": ((16,),), "6 Six eight, six.": ((16, 18),), "Ice 7 snow.": ((19,),),
    }  # fmt: skip
    assert {task.text for task in seen(echo)} == {"8 ice.", "9", "9."}
    reason = "'☃' (a character that the vocabulary lacks)"
    assert caplog.messages == [f"line 2: terms that are left out: {reason}"]
    whole = make_echo(glossary=TERMS)
    whole.translate("6 six. 7", phrases=["8 16"])
    assert seen(whole, "with phrases")[-1].phrases == ((8, 16),)
    with pytest.raises(InputError, match="translated in 2 parts"):
        echo.translate("6 six. 7", phrases=["8"])


@pytest.mark.parametrize("policy", ["truncate", "split"])
def test_terms_of_a_text_without_a_place_are_left_out(make_echo, caplog, policy):
    echo = make_echo(glossary=TERMS, max_source_length=4, long_lines=policy)
    echo("5 six 7 8 9 snow")
    phrased = [task.phrases for task in seen(echo, "with phrases")]
    assert phrased == ([] if policy == "truncate" else [((16,),), ((19,),)])
    reason = "line 1: terms that are left out: '16' (in a text that is cut), '☃' (in"
    assert (reason in caplog.messages[-1]) == (policy == "truncate")


def test_samples_have_no_glossary(make_echo):
    with pytest.raises(InputError, match="samples have no glossary; leave out the te"):
        make_echo(glossary=TERMS, temperature=1.0)


@pytest.mark.parametrize("of", [1, 2, 3, 40])
def test_parts_together_translate_all_sentences(make_echo, of, monkeypatch):
    monkeypatch.setattr(all_processes, "ROUND", 2)
    echo = make_echo()
    sentences = [*SENTENCES[:4], " ", *SENTENCES[4:], ""]
    prefixes = [""] * 7 + ["9"] + [""] * 3
    expected = echo.translate(sentences, prefixes=prefixes)
    assert expected[7][0].text == f"9 {sentences[7]}"
    lines, found, calls = numbered(sentences, prefixes, None), [], set()
    for number in range(of):
        check = mock.Mock()
        found += translate_share(echo, lines, (number, of), check)
        calls.add(check.call_count)
    assert sorted(found) == list(enumerate(expected))
    (count,) = calls  # each call synchronises the processes
    assert count >= -(-11 // (2 * of))


def test_check_stop_may_end_the_work_at_any_moment(make_echo):
    echo, check = make_echo(), mock.Mock()
    translate_all(echo, SENTENCES, check)
    assert check.call_count > len(SENTENCES)
    for count in range(check.call_count):
        stop = mock.Mock(side_effect=[*[None] * count, ProcessLookupError])
        with pytest.raises(ProcessLookupError):
            translate_all(echo, SENTENCES, stop)
    assert echo(SENTENCES) == SENTENCES


def test_all_processes_report_their_progress(make_echo, monkeypatch):
    progress = mock.MagicMock()
    monkeypatch.setattr(all_processes, "progress", progress)
    echo = make_echo()
    assert translate_all(echo, SENTENCES) == echo.translate(SENTENCES)
    progress.assert_called_once_with("translating", 9, unit="sentences")
    assert progress().__enter__().update.call_count == 9


def test_a_long_line_is_translated_in_parts(make_echo):
    echo = make_echo(n_best=2, max_source_length=8)
    line = "5 6, 7 8 9 10 11. 12 13 14."
    ((best, second),) = echo.translate([line], prefixes=["20"])
    assert [(task.source, task.prefix) for task in seen(echo)] == [
        ([5, 6, 7, 8, 9, 10, 11, EOS], [20]), ([12, 13, 14, EOS], []),
    ]  # fmt: skip
    # The best of both parts, then the second best; scores are sums.
    text = "5 6 7 8 9 10 11 12 13 14"
    sums = -10 / 9 - 10 / 4, -20 / 9 - 20 / 4, 9 + 4
    assert best[:4] == (f"20 {text}", *map(pytest.approx, sums))
    assert second[:4] == (text, *map(pytest.approx, (-10 / 8 - 10 / 4, -7.5, 8 + 4)))
    assert " ".join(best.source_pieces) == "5 6 7 8 9 10 11 </s> 12 13 14 </s>"
    assert best.pieces == ["20", *best.source_pieces]
    assert len({task.seed % 2**32 for task in seen(echo)}) == 2


TEXT = "\n5 6. 7.\n\n \x00\u2581\n8 9?\r\nM. 5. 10 11.\n"


@pytest.mark.parametrize(
    ("split", "sources", "text"),
    [
        (True, ["5 6", "7", "8 9", "5 10 11"], "\n5 6 7\n\n\n8 9\n5 10 11\n"),
        (False, ["5 6 7 8 9 5 10 11"], "5 6 7 8 9 5 10 11"),
    ],
)
def test_a_text_is_translated_sentence_by_sentence_or_as_one_line(
    make_echo, split, sources, text
):
    """Line breaks are kept; "M. 5." begins a sentence."""
    echo = make_echo(split_sentences=split, seed=3)
    (found,) = echo.translate([TEXT], prefixes=["20"])
    tasks = seen(echo)[:]
    assert [" ".join(map(str, task.source[:-1])) for task in tasks] == sources
    assert found[0].text == text.replace("5", "20 5", 1)
    assert [task.prefix for task in tasks] == [[20], *[[]] * (len(sources) - 1)]
    seeds = [task.seed % 2**32 for task in tasks]
    assert seeds[0] == 3_000_009
    assert len({*seeds}) == len(sources)
    blank = "\n\n" if split else ""
    assert echo(["", TEXT, "\n \n", "5. 6."])[1:] == [text, blank, "5 6"]
    tagged = {True: "\n5 6\n\n5 7\n", False: "5 6 7"}[split]
    assert echo("\n >>5<< 6\n\n7\n") == tagged


def test_each_sentence_is_short_enough_by_itself_and_has_the_language_code(make_echo):
    echo = make_echo(split_sentences=True, max_source_length=4, long_lines="refuse")
    assert echo("5 6 7. 8 9 10.") == "5 6 7 8 9 10"
    with pytest.raises(InputError, match="line 1 has 5 pieces"):
        echo("5 6 7. 8 9 10 11.")
    assert echo(" >>5<< 6 7. 8 9.\n>>6<<") == "5 6 7 5 8 9\n5 6"
    assert echo(">>6<< 7. 8.") == "6 7 8"
    sentences = echo.text.sentences(">>5<< 6 7. 8.")
    assert [each.strip() for each in sentences] == [">>5<<6 7.", ">>5<<8."]
    assert echo.of_sentences()("7 8. 9.") == "7 8 9"
    assert seen(echo)[-1].source == [7, 8, 9, EOS]


@pytest.mark.parametrize(
    ("line", "language", "count"),
    [
        ("The cat sleeps. The old man sees the dog.", "en", 2),
        ("Mr. Smith paid $3.5 million on Jan. 5. Really? Yes!", "en", 3),
        ("Er kam am 3. Mai an. Dr. M\u00fcller war z. B. nicht da.", "de", 2),
        ("M. Dupont est arriv\u00e9. Voil\u00e0.", "fr", 2),
        ("1. Mix. 2. Bake.", "en", 2),
        ("\u4eca\u5929\u5f88\u597d\u3002\u660e\u5929\u5462\uff1f", "zh_CN", 2),
        ("One. Two.", "no such language", 2),
        ("A\u2028. B\u00a0. \u3000", "en", 1),
        ("", "en", 0),
    ],
)
def test_sentences_of_a_line(line, language, count):
    found = sentences_of(line, language)
    assert "".join(found) == " ".join(line.split())
    assert len(found) == count


def test_a_long_line_may_be_truncated_or_refused_by_its_number(make_echo):
    long = "5 6 7 8 9 10"
    cut = make_echo(max_source_length=4, long_lines="truncate")
    assert cut(["5 6 7", long]) == ["5 6 7", "5 6 7"]
    echo = make_echo(max_source_length=4, long_lines="refuse")
    with pytest.raises(InputError, match=r"line 3 has 7 .* 4; .* split or truncate"):
        echo(["5", "6", long])
    with pytest.raises(InputError, match="line 12 has 7 pieces"):
        translate_all(echo, ["5", long], first=10)
    assert seen(echo) == []
    assert echo("5 6 7") == "5 6 7"


class Tagged(Numbers):
    """A tokeniser with two tags, which are pieces."""

    def source_pieces(self):
        return [*self.pieces(), ">>5<<", ">>6<<"]

    def language_code(self, text):
        return text[:5] if text.startswith((">>5<<", ">>6<<")) else ""

    def for_target(self, tag):
        other = copy.copy(self)
        other.target_start = [int(tag[2:-2])]
        return other


def test_a_text_keeps_its_tag_and_others_have_that_of_the_options():
    how = {"language": "en", "positions": math.inf, "choose": None, "needs_tag": False}
    sizes = {"beam_size": 1, "alpha": 0.6, "extra_length": EXTRA, "batch_tokens": 64}
    options = TranslateOptions(**sizes, tag=">>5<<")
    pipeline = TextPipeline(Tagged(), options, **how)
    assert pipeline.sentences("7") == [">>5<<7"]
    assert pipeline.sentences(">>6<< 7") == [">>6<<7"]
    lines = TextPipeline(
        Tagged(), dataclasses.replace(options, split_sentences=True), **how
    )
    text, own = ">>6<< 7\n8\n >>5<< 9\n", [">>6<<7", ">>6<<8", ">>5<<9"]
    assert lines.sentences(text) == own
    assert [task.text for task in lines.tasks(text, "", (), 0).tasks] == own
    with pytest.raises(InputError, match="no tag '>>7<<'; it has >>5<<, >>6<<"):
        TextPipeline(Tagged(), dataclasses.replace(options, tag=">>7<<"), **how)


def test_a_pipeline_of_another_direction_has_its_target_tag_and_language(monkeypatch):
    how = {"language": "en", "positions": math.inf, "choose": None, "needs_tag": False}
    sizes = {"beam_size": 1, "alpha": 0.6, "extra_length": EXTRA, "batch_tokens": 64}
    options = TranslateOptions(**sizes, tag=">>5<<", split_sentences=True)
    pipeline, split = TextPipeline(Tagged(), options, **how), []
    monkeypatch.setattr(
        parts, "sentences_of", lambda *own: split.append(own) or [own[0]]
    )
    other = pipeline.of_direction(Direction("zh", ">>6<<", ">>9<<"))
    (task,) = other.tasks(">>6<<7", "", (), 0).tasks
    assert (task.text, list(task.prefix), task.unscored) == (">>6<<7", [9], 1)
    (task,) = pipeline.tasks("7", "", (), 0).tasks
    assert (task.text, list(task.prefix)) == (">>5<<7", [])
    assert split == [("7", "zh"), ("7", "en")]
    (task,) = (
        pipeline.of_direction(Direction("en", "", ">>9<<")).tasks("7", "", (), 0).tasks
    )
    assert task.text == "7"  # without the tag of the options
    found: list = []
    (task,) = pipeline.reporting([task], found.append)
    scores = np.float32([-1.0])
    tokens = np.array([[9, 8, EOS]])
    task.done(SearchResult(tokens, np.array([3]), scores, scores, np.zeros((1, 3))))
    assert [(each.text, each.tokens) for each in found[0][0]] == [("8", 2)]


def test_a_tag_behind_spaces_is_not_added_again():
    lines = ["4", " >>5<< 4", "", " "]
    assert with_tag(Numbers(), lines, ">>5<<") == [">>5<< 4", *lines[1:]]
