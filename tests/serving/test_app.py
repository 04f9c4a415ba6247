"""The server: what it answers, what it refuses, when it gives up, and how it ends."""

import contextlib
import math
import re
import socket
import threading
import time

import numpy as np
import pytest

from jaxformer.serving import batching
from jaxformer.serving import server as server_module
from jaxformer.serving.server import listen
from jaxformer.system.errors import InputError

from .conftest import (
    BEAM,
    ENCODER_LAYERS,
    FakeTokenizer,
    FakeTranslator,
    reverse,
    weights,
)
from .test_http import POST


def assert_refused(reply, status: int, error: str) -> None:
    assert (reply.status, list(reply.values)) == (status, ["error"])
    assert error in reply.values["error"]
    assert (status == 503) == (reply.headers["retry-after"] == "1")
    assert (status == 405) == ("allow" in reply.headers)


def test_sentences_are_translated_in_order(serve):
    server = serve()
    reply = server.translate("a dog runs")
    assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
    (found,) = reply.values["translations"]
    words = [(each["word"], each["log_probability"]) for each in found.pop("words")]
    assert words == [("a", 0.0), ("god", math.log(1 / 2)), ("snur", math.log(1 / 3))]
    assert found == {
        "text": "a god snur", "score": -0.5, "log_probability": -1.5, "tokens": 4
    }  # fmt: skip
    for body, texts in [
        ({"text": ["one two three", "", "four"]}, ["eno owt eerht", "", "ruof"]),
        ({"text": []}, []),
        ({"text": "Käse 🧀👩‍🚀 \x00"}, [reverse("Käse 🧀👩‍🚀 \x00")]),
        ({"text": ["ab", "cd"], "prefix": ["", "So"]}, ["ba", "So dc"]),
        ({"text": "ab", "phrases": ["x", "y z"]}, ["ba x y z"]),
        ({"text": ["ab", "cd"], "phrases": [[], ["x"]]}, ["ba", "dc x"]),
    ]:
        values = server.ask("/translate", body).values
        assert [each["text"] for each in values["translations"]] == texts
    for n_best, texts in (2, ["ba", "ba!"]), (BEAM, ["ba", "ba!", "ba!!"]):
        (found,) = server.translate("ab", n_best=n_best).values["translations"]
        assert [each["text"] for each in found["n_best"]] == texts  # all that was found
        assert found["text"] == "ba"


def test_a_tag_begins_each_text_that_has_none(serve):
    ask = serve(tags=[">>fr<<"]).ask
    reply = ask("/translate", {"text": ["a b", "c"], "tag": ">>fr<<"})
    texts = [each["text"] for each in reply.values["translations"]]
    assert texts == [reverse(">>fr<<a b"), reverse(">>fr<<c")]
    twice = ask("/translate", {"text": " >>fr<< a", "tag": ">>fr<<"})
    assert_refused(twice, 400, '"text" begins with a tag already; leave out "tag"')
    other = ask("/translate", {"text": "a", "tag": ">>de<<"})
    assert_refused(other, 400, '"tag" is not in the vocabulary; use one of >>fr<<')


def test_a_document_is_translated_as_a_whole(serve):
    server = serve()
    found = server.translate(["dog|runs far", "|a"], markup="po")
    assert found.values == {
        "translations": [
            {"text": "god|snur raf", "messages": [f"po {links('runs far')}"]},
            {"text": "|a", "messages": ["po [(0, 0)]"]},
        ]
    }
    for more, error in (
        ({"markup": "html", "n_best": 2}, "unknown key 'n_best'"),
        ({"markup": 1}, '"markup" has to be a string'),
    ):
        reply = server.translate("dog", **more)
        assert (reply.status, reply.values["error"][: len(error)]) == (400, error)
    assert server.translate("<", markup="xml").values == {"error": "line 1: no tag"}


def links(text: str) -> list[tuple[int, int]]:
    """The links of the fake translator between the words of a text."""
    return FakeTranslator().attention(text, reverse(text)).alignment()


def test_attention_of_a_pair_has_all_heads_of_all_layers(serve):
    values = serve().ask("/attention", {"source": "a b", "target": "c"}).values
    assert values["source"] == ["\u2581a", "\u2581b", "</s>"]
    assert values["target"] == ["\u2581c", "</s>"]
    for name, queries, keys in (("encoder", 3, 3), ("decoder", 2, 2), ("cross", 2, 3)):
        expected = np.rint(1000 * weights(queries, keys))
        if name == "encoder":
            expected = expected[:ENCODER_LAYERS]
        np.testing.assert_array_equal(values[name], expected)


def test_sentences_have_their_own_translations_and_pieces_their_probabilities(serve):
    server = serve()
    body = {"text": "ab cd. ef\ngh", "n_best": 2, "sentences": True}
    (found,) = server.ask("/translate", body).values["translations"]
    sources = [[each["source"] for each in line] for line in found["sentences"]]
    assert sources == [["ab cd.", "ef"], ["gh"]]
    first = found["sentences"][0][0]
    assert first["source_tokens"] == 3
    assert [each["text"] for each in first["translations"]] == ["ba .dc", "ba .dc!"]
    (plain,) = server.translate("ab cd. ef").values["translations"]
    assert sorted(plain) == ["log_probability", "score", "text", "tokens", "words"]
    scored = server.ask("/score", {"source": "a", "target": "b cd"}).values
    assert scored == {
        "target": ["\u2581b", "\u2581cd", "</s>"], "probabilities": [1.0, 0.5, 0.3333]
    }  # fmt: skip


def test_a_bad_request_is_refused_in_json(serve):
    server = serve()
    long = {"source": "a", "target": "ä " * 128}
    two = {"source": "a.\nb", "target": "c"}
    text = {"Content-Type": "text/plain"}
    utf_8 = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
    for status, error, request, headers in [
        (400, "not JSON", ("/translate", b"{"), utf_8),
        (400, "one sentence, and the text has 2", ("/attention", two), {}),
        (400, "51 tokens", ("/translate", {"text": ["a", "b " * 51]}), {}),
        (404, "no GET /nothing; there are GET /, GET /docs", ("/nothing",), {}),
        (404, ", POST /translate, ", ("/translate/", {"text": "a"}), {}),
        (405, "there is no GET /translate; there are", ("/translate",), {}),
        (405, "there is no DELETE /; there are GET /, ", ("/", b"", "DELETE"), {}),
        (405, ", GET /health, GET /ready, ", ("/health", {}), {}),
        (413, "201 pieces, more than 200", ("/translate", {"text": "a " * 200}), {}),
        (413, "206 pieces", ("/translate", {"text": "a", "phrases": ["b"] * 102}), {}),
        (413, "202 pieces, more than 200", ("/translate", {"text": ["a"] * 101}), {}),
        (413, "exceeds 6,400 bytes", ("/translate", b" " * 6_401), {}),
        (413, "limited to 128 pieces", ("/attention", long), {}),
        (415, "Content-Type", ("/translate", {"text": "a"}), text),
    ]:
        assert_refused(server.ask(*request, **headers), status, error)


def test_more_than_may_wait_is_asked_to_come_again(busy):
    server, first = busy(max_queue=7)
    (waiting,) = server.queue(["second", "third"])
    assert_refused(server.translate("fourth"), 503, "waiting")
    server.translator.gate.set()
    assert first.result().status == waiting.result().status == 200
    assert server.translator.begun == ["first", "second", "third"]
    assert server.translate("fourth").status == 200


def test_large_requests_leave_room_for_small_ones(busy):
    server, first = busy(max_queue=400)
    large = ["w " * 40] * 4  # 164 pieces
    replies = server.queue(large)
    assert_refused(server.translate(large), 503, "waiting")
    replies.append(server.later(server.translate, "small"))
    server.until(lambda: server.metric("request_pieces") == 2 + 164 + 2)
    server.translator.gate.set()
    assert [reply.result().status for reply in (first, *replies)] == [200] * 3
    server.until(lambda: server.metric("request_pieces") == 0)


def test_large_texts_are_tokenised_one_at_a_time(serve, monkeypatch):
    """So that small ones find a thread."""
    encode, active, most = FakeTokenizer.encode, [], []

    def slow_encode(self, texts):
        active.append(texts)
        most.append(len(active))
        time.sleep(0.2)
        active.pop()
        return encode(self, texts)

    monkeypatch.setattr(FakeTokenizer, "encode", slow_encode)
    server = serve()
    for size, is_large in ((5_000, True), (5, False)):
        most.clear()
        replies = [server.later(server.translate, "x" * size) for _ in range(3)]
        assert [reply.result().status for reply in replies] == [200] * 3
        assert (max(most) == 1) == is_large


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a", "markup": "html"},
        {"q": "a", "source": "en", "target": "de", "format": "html"},
    ],
)
@pytest.mark.parametrize("when", ["read", "written"])
def test_a_document_that_takes_too_long_is_given_up(serve, fields, when):
    gate = threading.Event()

    def markup(links_of, kind, text):
        gate.wait(20 if when == "read" else 0)
        return [text], lambda found: (gate.wait(20), found)

    server = serve(site={"markup": markup}, request_timeout=0.5)
    reply = server.ask("/translate", fields)
    gate.set()
    error = {"error": "no answer within 0.5 seconds"}
    assert (reply.status, reply.values) == (504, error)


def test_documents_that_wait_for_links_stop_no_other_request(start):
    server = start(request_timeout=2.0, max_queue=10_000)
    server.translator.more.clear()
    server.until_ready()
    document = {"text": "a", "markup": "html"}
    waiting = [server.later(server.ask, "/translate", document) for _ in range(20)]
    server.until(lambda: server.metric("request_pieces") == 20 * 2 * 2)
    begin = time.monotonic()
    text = {"q": "a", "source": "en", "target": "de"}
    assert server.ask("/translate", text).status == 200
    assert server.ask("/detect", text).status == 200
    assert time.monotonic() - begin < 1
    assert {each.result().status for each in waiting} == {504}
    server.until(lambda: server.metric("request_pieces") == 0)


def test_what_takes_too_long_is_given_up_and_dropped(busy):
    """Also when it is begun."""
    server, first = busy("a b c", request_timeout=0.5)
    (second,) = server.queue(["second", "third"])
    for reply in (first, second):
        assert_refused(reply.result(), 504, "0.5 seconds")
    assert server.ask("/health").values["status"] == "stalled"
    server.until_ready()
    assert server.translate("fourth").status == 200
    assert server.translator.begun == ["a b c", "fourth"]
    assert server.metric("dropped_sentences_total") == 3
    assert server.metric("sentences_total") == 1


def test_nothing_is_translated_for_a_client_that_went_away(busy):
    server, first = busy()
    with socket.create_connection(server.address) as client:
        client.sendall(POST + b'Content-Length: 18\r\n\r\n{"text": "second"}')
        server.until(lambda: server.metric("queue_sentences") == 1)
    gone = 'requests_total{path="/translate",status="499"}'
    server.until(lambda: server.metric(gone) == 1)
    server.translator.gate.set()
    assert first.result().status == server.translate("third").status == 200
    assert server.translator.begun == ["first", "third"]


def test_a_client_that_went_away_before_its_text_was_tokenised(serve, monkeypatch):
    encode, began, gate = FakeTokenizer.encode, [], threading.Event()

    def slow_encode(self, texts):
        began.append(texts)
        gate.wait(10)
        return encode(self, texts)

    monkeypatch.setattr(FakeTokenizer, "encode", slow_encode)
    server, gone = serve(), 'requests_total{path="/translate",status="499"}'
    body = b'{"text": "%s"}' % (b"x" * 5_000)
    for count in (1, 2):  # the second waits for the first
        with socket.create_connection(server.address) as client:
            client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            server.until(lambda: len(began) == 1)
            time.sleep(0.2)
        server.until(lambda count=count: server.metric(gone) == count)
    gate.set()
    assert server.translate("third").status == 200
    assert server.translator.begun == ["third"]
    assert sum(map(len, began)) == 2


def test_no_answer_is_lost_or_mixed_up_among_many_clients(serve):
    server = serve(max_queue=4000)
    texts = [f"{n} {'w ' * (k % 7)}{k}" for n in range(64) for k in range(6)]
    replies = [server.later(server.translate, text) for text in texts]
    found = [reply.result().values["translations"][0]["text"] for reply in replies]
    assert found == [reverse(text) for text in texts]
    assert server.metric("sentences_total") == len(texts)
    assert server.translator.most > 1


def test_it_is_ready_once_it_can_translate_and_the_rest_waits_for_its_programs(
    start, monkeypatch, caplog
):
    monkeypatch.setattr(batching, "LOG_SECONDS", 0.0)
    caplog.set_level("INFO", "jaxformer")
    server, paths = start(), ("/ready", "/health")
    server.translator.more.clear()
    for path in paths:
        cold = server.ask(path)
        assert (cold.status, cold.values["status"]) == (503, "starting")
        assert cold.headers["retry-after"] == "1"
        assert cold.values["compiling"] == {"done": 0, "of": 4}
    for request in (
        ("/translate", {"text": "a"}),
        ("/attention", {"source": "", "target": ""}),
    ):
        assert_refused(server.ask(*request), 503, "the server is starting; try again")
    about = {"status": "ready", "direction": "en-de", "languages": ["en", "de"]}
    about |= {"n_best": BEAM, "tags": [], "attention": True, "pair_tokens": 128}
    about["api_keys"] = False
    server.until_ready()
    assert [server.ask(path).values for path in paths] == [
        {**about, "compiling": {"done": 1, "of": 4}}
    ] * 2
    pair = {"source": "a", "target": "b"}
    waiting = [
        server.later(server.ask, "/attention", pair),
        server.later(server.translate, "a", phrases=["b"]),
    ]
    server.until(lambda: server.metric("request_pieces") == 4 + 4)
    assert server.translate("later but short").status == 200
    assert not any(reply.done() for reply in waiting)
    server.translator.more.set()
    assert [reply.result().status for reply in waiting] == [200, 200]
    server.until(lambda: server.ask("/ready").values == about)
    server.until(lambda: "compiled 4 programs in" in caplog.text)
    assert "compiling: 3 of 4 programs, 0 s left" in caplog.messages


def test_with_a_glossary_it_is_ready_once_terms_can_be_met(start, monkeypatch):
    monkeypatch.setattr(FakeTranslator, "has_glossary", True)
    server = start()
    server.translator.more.clear()
    server.translator.gate.set()
    server.until(lambda: server.ask("/ready").values["compiling"]["done"] == 1)
    assert server.ask("/ready").status == 503
    server.translator.more.set()
    server.until(lambda: server.ask("/ready").status == 200)


def test_languages_are_named_as_in_html(serve):
    about = serve(languages=("pt_BR", "zh")).ask("/ready").values
    assert (about["direction"], about["languages"]) == ("pt_BR-zh", ["pt-BR", "zh"])


def test_metrics_count_what_was_asked_and_done(serve):
    server = serve()
    server.translate(["ab cd", "ef"])
    server.translate("x", n_best=9)
    server.ask("/somewhere/else")
    reply = server.ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    for sample in (
        'requests_total{path="/translate",status="200"} 1',
        'requests_total{path="/translate",status="400"} 1',
        'requests_total{path="other",status="404"} 1',
        'request_seconds_count{path="/translate"} 2',
        "sentences_total 2", "tokens_total 5", "batch_sentences_sum 2",
        "advance_seconds_count 2", "search_sentences 0",
    ):  # fmt: skip
        assert f"jaxformer_{sample}.0\n" in reply.text


@pytest.mark.parametrize(("page", "count"), [("/", 3), ("/docs", 4)])
def test_the_pages_load_nothing_from_other_hosts(serve, page, count):
    server = serve()
    reply = server.ask(page)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert re.fullmatch(
        r"default-src 'self'; img-src data:;( [a-z-]+ 'none';?)+", policy
    )
    links = re.findall(r'(?:src|href)="(?!data:)([^"]*)', reply.text)
    assert [server.ask(f"/{link}").status for link in links] == [200] * count


def test_what_was_accepted_is_finished_before_the_end(busy):
    server, first = busy()
    replies = [first, *server.queue("w0", "w1", "w2")]
    answered = server.service.server_state.total_requests
    server.service.stop()
    threading.Timer(0.3, server.translator.gate.set).start()
    assert [reply.result().status for reply in replies] == [200] * 4
    result = server.ended.result(10)
    assert (result["sentences"], result["requests"]) == (4, answered + 4)
    with pytest.raises(ConnectionError):
        server.ask("/health")


def test_the_end_comes_even_if_an_answer_does_not(busy, monkeypatch):
    monkeypatch.setattr(server_module, "LAST_ANSWERS", 0.2)
    server, first = busy(shutdown_timeout=0.3)
    replies = [first, *server.queue("second")]
    server.service.stop()
    for reply in replies:
        assert_refused(reply.result(), 503, "shutting down")
    assert server.ended.result(3)["sentences"] == 0


@pytest.mark.parametrize("when", ["cold", "compiling", "warm"])
def test_a_failure_of_the_model_ends_the_server(start, busy, when):
    if when == "warm":
        server, first = busy()
        replies = [first, *server.queue("a", "b", "c")]
    else:
        server, replies = start(), []
    if when == "compiling":
        server.translator.more.clear()
        server.until_ready()
        replies = [server.later(server.translate, "a", phrases=["b"])]
        server.until(lambda: server.metric("queue_sentences") == 1)
    server.translator.fault = RuntimeError("out of memory")
    server.translator.gate.set()
    server.translator.more.set()
    for reply in replies:
        assert_refused(reply.result(), 503, "translating failed")
    assert server.ended.exception(10) is server.translator.fault


def test_scores_that_are_no_numbers_fail_their_request_alone(busy):
    server, first = busy()
    answers = server.queue(["one", "NaN"], "two")
    server.translator.gate.set()
    failed, *others = (each.result(9) for each in (answers[0], first, answers[1]))
    assert_refused(failed, 500, "no numbers")
    assert {each.status for each in others} == {200}
    health = server.ask("/health")
    assert health.status == 200
    assert health.values["requests_without_finite_scores"] == 1


@pytest.mark.parametrize(
    ("head", "interim"),
    [
        (POST, {b"HTTP/1.1 100 Continue"}),
        (POST + b"Connection: close\r\n", {b"HTTP/1.1 100 Continue"}),
        (POST.replace(b"1.1", b"1.0"), set()),
    ],
)
def test_a_client_that_sends_nothing_more_gets_its_answer(busy, head, interim):
    server, _ = busy()
    with socket.create_connection(server.address, 20) as client:
        client.sendall(head + b'Content-Length: 18\r\n\r\n{"text": "second"}')
        client.shutdown(socket.SHUT_WR)
        server.until(lambda: server.metric("queue_sentences") == 1)
        time.sleep(1.5 * server_module.PROBE_SECONDS)
        server.translator.gate.set()
        received = b"".join(iter(lambda: client.recv(2**16), b""))
    *before, head, answer = received.split(b"\r\n\r\n")
    assert {*before} == interim
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b'"text":"dnoces"' in answer


def test_a_port_that_cannot_be_opened_is_an_input_error():
    with contextlib.closing(listen("localhost", 0)) as opened:
        for host, port, reason in (
            ("no.such.host.invalid", 0, "not known"),
            ("a" * 70, 0, "label"),
            ("192.0.2.1", 0, "assign"),
            ("127.0.0.1", 65536, "65535"),
            ("127.0.0.1", opened.getsockname()[1], "in use)"),
        ):
            reason = reason.replace(")", r"\)")
            message = f"host {host}, port {port} .*{reason}.*; choose .* another port"
            with pytest.raises(InputError, match=message):
                listen(host, port)
