"""A translator that many requests share: against one that has each text alone."""

import itertools
import random
from types import SimpleNamespace

import jax
import pytest

from jaxformer.decoding import request_queue, shapes, text_pipeline
from jaxformer.decoding.glossary import Glossary
from jaxformer.decoding.request_queue import PAIRS, PHRASES, SHORT_TURN, RequestQueue
from jaxformer.system.errors import InputError
from tests.decoding.tiny import EXTRA, SENTENCES, open_translator

LONGEST = 12  # pieces of a source; longer ones are split
EVENTS: list[str] = []  # of JAX's compiler


@pytest.fixture(scope="module", autouse=True)
def listener():
    """Note every program that is traced or compiled; JAX keeps its listeners."""
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: EVENTS.append(event) if "compile" in event else None
    )


@pytest.fixture(scope="module")
def served() -> RequestQueue:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "SHORTEST_LENGTH", 16)
        terms = Glossary(["seventeen eighteen\t17 18"], "terms")
        options = {"n_best": 2, "max_source_length": LONGEST, "split_sentences": True}
        translator = open_translator(glossary=terms, **options)
        served = RequestQueue(translator, slots=4, attention=20)
        progress = [
            (done, of, ask_all(served, done) if done else None)
            for done, of in served.compile()
        ]
    first, *rest = [answers for *_, answers in progress]
    numbers = [(done, of) for done, of, _ in progress]
    assert numbers == [(n, len(rest)) for n in range(len(rest) + 1)]
    assert first is None
    for answers in rest:
        assert answers == {key: rest[-1][key] for key in answers}
    return served


def ask_all(served, programs: int) -> dict:
    """Send every kind of request that so many programs allow; nothing is compiled."""
    EVENTS.clear()
    answers = {}
    submit(served, answers, "list", *SENTENCES)
    submit(served, answers, "long", " ".join(["7"] * 200), prefix="5 " * LONGEST)
    if programs >= PHRASES:
        submit(served, answers, "phrase", "5", phrases=["6 7"])
        submit(served, answers, "term", "5. 6 seventeen eighteen. 7.")
    finish(served)
    if programs >= PAIRS:
        served.translator.attention("5 6", "7")
        served.translator.score(["5 6"], ["7"])
    assert EVENTS == []
    return {key: [each[0].text for each in found] for key, found in answers.items()}


def submit(served, answers: dict, key, *texts: str, prefix="", phrases=()) -> None:
    prepared = [served.text.tasks(text, prefix, phrases, 0) for text in texts]
    served.submit(
        prepared,
        lambda found: answers.update({key: [each.hypotheses for each in found]}),
        lambda error: answers.update({key: error}),
        request=key,
    )


def test_a_text_has_the_terms_of_a_glossary(served):
    assert "17 18" in ask_all(served, PHRASES)["term"][0]
    texts = {"5": False, "5 seventeen. Eighteen": False, "5. Seventeen eighteen": True}
    for text, has_phrases in texts.items():
        assert served.text.tasks(text, "", (), 0).has_phrases == has_phrases


def finish(served) -> None:
    while served.advance():
        assert any(served.load)


def test_random_requests_compile_nothing_and_change_no_other(served):
    draw, answers, requests = random.Random(0), {}, {}
    EVENTS.clear()
    for key in range(40):
        lengths = draw.choices([0, 1, 3, LONGEST - 1, 40], k=draw.choice([1, 1, 2, 4]))
        words = [draw.choices(range(4, 20), k=length) for length in lengths]
        texts = [" ".join(map(str, each)) for each in words]
        prefix = " ".join(["5"] * draw.choice([0, 0, 2, LONGEST + EXTRA - 1]))
        phrases = draw.choice([(), (), ["6 7"], ["6 7", "8", "9 6 7"]])
        if max(lengths) >= LONGEST or len(prefix) > 3:
            phrases = ()  # they belong to one part, and need room
        given = {"prefix": prefix, "phrases": phrases}
        submit(served, answers, key, *texts, **given)
        requests[key] = texts, given
        for _ in range(draw.choice([0, 1, 5, 30])):
            served.advance()
        if key % 5 == 4:
            served.cancel(key)
            answers.setdefault(key, None)
    finish(served)
    for pieces in (0, 1, 7, 15, 19):
        served.translator.attention(" ".join(["5"] * pieces), "6")
    assert EVENTS == []
    assert sorted(answers) == list(requests)
    for key, found in answers.items():
        if found is not None:
            alone = {}
            for number, text in enumerate(requests[key][0]):
                submit(served, alone, number, text, **requests[key][1])
                finish(served)
            for number, hypotheses in enumerate(found):
                ((first, *_),) = alone[number]
                assert hypotheses[0].text == first.text
                assert hypotheses[0].score == pytest.approx(first.score, abs=1e-4)
                for phrase in requests[key][1]["phrases"] if first.text else ():
                    assert f" {phrase} " in f" {first.text} "
    assert len({requests[key][1]["phrases"] != () for key in answers}) == 2


def test_a_small_request_does_not_wait_for_a_large_one(served, monkeypatch):
    clock = SimpleNamespace(monotonic=itertools.count(0, SHORT_TURN).__next__)
    monkeypatch.setattr(request_queue, "time", clock)  # all turns take as long
    answers = {}
    submit(served, answers, "large", " ".join(["7"] * 2000))
    for _ in range(9):
        served.advance()
    submit(served, answers, "small", SENTENCES[0])
    waiting, _ = served.load
    while "small" not in answers:
        served.advance()
    assert served.load[0] > 0.8 * waiting > 100
    served.cancel("large")
    assert served.load == (0, 0)
    assert not served.advance()
    assert list(answers) == ["small"]


def test_requests_of_one_search_take_turns_by_their_parts(served):
    answers = {}
    submit(served, answers, "many", *["7 8"] * 40)
    served.advance()
    submit(served, answers, "one", "5 6")
    while "one" not in answers:
        served.advance()
    assert served.load[0] > 10
    finish(served)
    assert sorted(answers) == ["many", "one"]


def test_a_list_beside_single_texts_is_not_much_later_than_they(served):
    """There are always 16 single texts, four times as many as slots."""
    answers, begun, waited = {}, {}, {}
    for number in itertools.count():
        for key in range(len(begun), 16 + len(answers.keys() & begun.keys())):
            begun[key] = number
            submit(served, answers, key, "5 6 7")
        if number == 40:
            begun["list"] = number
            submit(served, answers, "list", *["7 8 9"] * 8)
        served.advance()
        for key in answers.keys() - waited.keys():
            waited[key] = number + 1 - begun[key]
        if "list" in answers:
            break
    for key in begun:
        served.cancel(key)
    assert waited.pop("list") < 2 * max(waited.values())


@pytest.mark.parametrize("fails", [InputError("no numbers"), None])
def test_a_result_that_cannot_be_used_fails_its_request_alone(
    served, monkeypatch, fails
):
    make, answers = text_pipeline.hypotheses_of, {}

    def fail(tokenizer, names, source, *found):
        if fails and len(source) == 3:
            raise fails
        return make(tokenizer, names, source, *found)

    monkeypatch.setattr(text_pipeline, "hypotheses_of", fail)
    submit(served, answers, "failed", "5 6", "7")
    submit(served, answers, "other", "8")
    finish(served)
    assert answers["other"][0][0].text
    assert (answers["failed"] is fails) == bool(fails)


def test_an_idle_search_has_no_time_to_make_up(served):
    submit(served, {}, "small", SENTENCES[0])
    finish(served)
    assert len({*served._used}) == 1
    assert served._used[0] > 0


def test_a_request_may_have_no_text_or_a_blank_one(served):
    answers = {}
    submit(served, answers, "none")
    submit(served, answers, "blank", " ", SENTENCES[0])
    finish(served)
    assert answers["none"] == []
    assert answers["blank"][0][0].text == ""


def test_what_no_program_holds_is_refused(served):
    with pytest.raises(
        InputError, match=r"line 1: the prefix has 18 pieces, end .* 17"
    ):
        served.text.tasks("5", " ".join(["5"] * 17), (), 0)
    with pytest.raises(InputError, match=r"line 3: .* 18 pieces, more than 17"):
        served.text.tasks("5", "5 5 5", [" ".join(["6"] * 14)], 2)
