"""The HTTP API: what it answers, what it refuses, and when it gives up."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import BEAM, HEADS, LAYERS, turned

SENTENCE = "a dog runs"


def test_a_sentence_is_translated(serve):
    reply = serve().translate(SENTENCE)
    assert reply.status == 200
    assert reply.values == {
        "translations": [
            {"text": "a god snur", "score": -0.5, "log_probability": -1.5, "tokens": 4}
        ]
    }
    assert reply.headers["cache-control"] == "no-store"


def test_sentences_keep_their_order_however_long_they_are(serve):
    sentences = ["one two three", "", "four", "five six", "  "]
    found = serve().translate(sentences).values["translations"]
    assert [each["text"] for each in found] == [turned(each) for each in sentences]


def test_no_sentences_give_no_translations(serve):
    assert serve().translate([]).values == {"translations": []}


def test_n_best_gives_candidates_best_first(serve):
    (found,) = serve().translate("ab cd", n_best=2).values["translations"]
    assert [each["text"] for each in found["n_best"]] == ["ba dc", "ba dc!"]
    assert found["text"] == "ba dc"


def test_an_empty_place_of_the_beam_is_no_candidate(serve):
    (found,) = serve().translate("ab cd", n_best=BEAM).values["translations"]
    assert len(found["n_best"]) == BEAM - 1


@pytest.mark.parametrize(
    ("text", "prefix", "found"),
    [("ab", "So", ["So ba"]), (["ab", "cd"], ["", "So"], ["ba", "So dc"])],
)
def test_a_translation_begins_as_it_is_told(serve, text, prefix, found):
    values = serve().translate(text, prefix=prefix).values
    assert [each["text"] for each in values["translations"]] == found


def test_text_is_utf_8_and_stays_whole(serve):
    (found,) = serve().translate("Käse 🧀👩‍🚀 \x00").values["translations"]
    assert found["text"] == turned("Käse 🧀👩‍🚀 \x00")


def test_attention_of_a_pair_has_all_heads_of_all_layers(serve):
    values = serve().ask("/attention", {"source": "a b", "target": "c"}).values
    assert values["source"] == ["\u2581a", "\u2581b", "</s>"]
    assert values["target"] == ["\u2581c", "</s>"]
    for name, queries, keys in (("encoder", 3, 3), ("decoder", 2, 2), ("cross", 2, 3)):
        layers = values[name]
        assert len(layers) == LAYERS
        assert [len(heads) for heads in layers] == [HEADS] * LAYERS
        for rows in (rows for heads in layers for rows in heads):
            assert [len(row) for row in rows] == [keys] * queries
            if name != "decoder":
                assert all(abs(sum(row) - 1000) <= keys for row in rows)


def test_attention_of_long_texts_is_refused(serve):
    reply = serve(max_request_bytes=5000).ask(
        "/attention", {"source": "ä" * 301, "target": "a"}
    )
    assert reply.status == 413
    assert '"source" has more than 600 bytes' in reply.error


# Refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b'{"text": "a"} x', 400, "the body is not JSON"),
        (b'{"text": ' + b"9" * 900 + b"}", 400, '"text" has to be a string'),
        (b"[" * 900, 400, "the body is"),
        (b'{"text": "\xff"}', 400, "the body is not UTF-8 (byte 10)"),
        ('{"text": "a"}'.encode("utf-16"), 400, "the body is not UTF-8"),
        (b'{"text": "\\ud800"}', 400, '"text" has half of a surrogate pair'),
        (b'["a"]', 400, "the body has to be a JSON object"),
        (b"null", 400, "the body has to be a JSON object"),
        (b"{}", 400, '"text" is missing'),
        (b'{"text": null}', 400, '"text" has to be a string'),
        (b'{"text": ["a", 1]}', 400, '"text", sentence 2 has to be a string'),
        (b'{"txt": "a"}', 400, 'unknown key "txt"; did you mean "text"?'),
        (b'{"\\ud800": "a"}', 400, 'unknown key "?"'),
        (b'{"text": "a", "n_best": 0}', 400, '"n_best" has to be an integer from 1'),
        (b'{"text": "a", "n_best": 5}', 400, "from 1 to 4"),
        (b'{"text": "a", "n_best": true}', 400, '"n_best" has to be'),
        (b'{"text": "a", "n_best": 1.0}', 400, '"n_best" has to be'),
        (b'{"text": "a", "prefix": ["b"]}', 400, '"prefix" has to be'),
        (b'{"text": ["a"], "prefix": []}', 400, '"prefix" has to be'),
        (b'{"text": "' + b"a " * 51 + b'"}', 400, "51 pieces, more than 50"),
        (json.dumps({"text": ["a"] * 9}).encode(), 413, "may have 8"),
        (b" " * 1001, 413, "the body has more than 1,000 bytes"),
    ],
)
def test_a_bad_body_is_refused_in_json(serve, body, status, error):
    server = serve()
    reply = server.ask("/translate", body)
    assert reply.status == status
    assert error in reply.error
    assert server.translate(SENTENCE).status == 200


@pytest.mark.parametrize(
    "body", [b"{}", b'{"source": "a"}', b'{"source": "a", "target": 1}', b"\xff"]
)
def test_a_bad_pair_is_refused_in_json(serve, body):
    reply = serve().ask("/attention", body)
    assert reply.status == 400
    assert reply.error


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/nothing", {}, 404),
        ("POST", "/translate/", {}, 404),
        ("GET", "/translate", {}, 405),
        ("DELETE", "/", {}, 405),
        ("BREW", "/translate", {}, 405),
        ("POST", "/translate", {"Content-Type": "text/plain"}, 415),
        ("POST", "/translate", {"Content-Type": "application/json; charset=x"}, 415),
        ("POST", "/translate", {"Content-Encoding": "gzip"}, 415),
    ],
)
def test_a_bad_request_is_refused_in_json(serve, method, path, headers, status):
    reply = serve().ask(path, b'{"text": "a"}', method, **headers)
    assert reply.status == status
    assert reply.error
    assert (status == 405) == ("allow" in reply.headers)


def test_a_charset_of_utf_8_may_be_named(serve):
    kind = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
    assert serve().ask("/translate", b'{"text": "a"}', **kind).status == 200


def answer_to(server, *parts: bytes, pause: float = 0.0) -> bytes:
    """What comes back when these bytes are sent, up to the end of the connection."""
    with socket.create_connection((server.host, server.port), 10) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        received = b""
        while not received.endswith(b"}") and (more := client.recv(65536)):
            received += more
        return received


POST = b"POST /translate HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 100_000, 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: 999999999999\r\n\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b" " * 2000, 413),
    ],
)
def test_what_is_hardly_http_is_refused_in_json(serve, sent, status):
    server = serve()
    head, _, body = answer_to(server, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert list(json.loads(body)) == ["error"]
    assert server.translate(SENTENCE).status == 200


@pytest.mark.parametrize(
    "parts", [(b"",), (b"GET /hea", b"lth HT"), (POST, b"Content-Length: 9\r\n\r\n{")]
)
def test_a_request_that_takes_too_long_to_come_is_refused(serve, parts):
    server = serve(request_timeout=0.4)
    start = time.monotonic()
    head, _, body = answer_to(server, *parts, pause=0.1).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert list(json.loads(body)) == ["error"]
    assert time.monotonic() - start < 2


# Too much, too late, gone ---------------------------------------------------------


@pytest.fixture
def later():
    """Call a function in a thread; gives its future."""
    with ThreadPoolExecutor(64) as pool:
        yield pool.submit


def test_more_than_may_wait_is_asked_to_come_again(serve, later):
    server = serve(max_batch=1, max_queue=2, max_sentences=2)
    server.translator.gate.clear()
    first = later(server.translate, "first")
    server.until(lambda: server.translator.begun == ["first"])
    waiting = later(server.translate, ["second", "third"])
    server.until(lambda: server.metric("jaxformer_queue_sentences") == 2)
    refused = server.translate("fourth")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "waiting" in refused.error
    server.translator.gate.set()
    assert (first.result().status, waiting.result().status) == (200, 200)
    assert server.translator.begun == ["first", "second", "third"]


def test_what_takes_too_long_is_given_up_and_not_begun(serve, later):
    server = serve(max_batch=1, request_timeout=0.5)
    server.translator.gate.clear()
    first = later(server.translate, "first")
    server.until(lambda: server.translator.begun == ["first"])
    second = later(server.translate, ["second", "third"])
    for reply in (first.result(), second.result()):
        assert reply.status == 504
        assert "0.5 seconds" in reply.error
    assert server.ask("/health").values["status"] == "stalled"
    server.translator.gate.set()
    server.until(lambda: server.ask("/health").status == 200)
    assert server.translate("fourth").status == 200
    assert server.translator.begun == ["first", "fourth"]
    assert server.metric("jaxformer_dropped_sentences_total") == 2
    assert server.metric("jaxformer_requests_total", status="504") == 2


def test_nothing_is_translated_for_a_client_that_went_away(serve, later):
    server = serve(max_batch=1)
    server.translator.gate.clear()
    first = later(server.translate, "first")
    server.until(lambda: server.translator.begun == ["first"])
    with socket.create_connection((server.host, server.port)) as client:
        client.sendall(POST + b'Content-Length: 18\r\n\r\n{"text": "second"}')
        server.until(lambda: server.metric("jaxformer_queue_sentences") == 1)
    gone = {"path": "/translate", "status": "499"}
    server.until(lambda: server.metric("jaxformer_requests_total", **gone) == 1)
    server.translator.gate.set()
    assert first.result().status == 200
    assert server.translate("third").status == 200
    assert server.translator.begun == ["first", "third"]


def test_a_sentence_that_is_too_long_takes_its_request_with_it(serve):
    server = serve()
    reply = server.translate(["a", "b " * 51, "c"])
    assert (reply.status, reply.error) == (
        400, "the sentence has 51 pieces, more than 50",
    )  # fmt: skip


# Many at once ---------------------------------------------------------------------


def test_no_answer_is_lost_or_mixed_up_among_many_clients(serve, later):
    server = serve(max_batch=16, max_queue=256)

    def client(number: int) -> list[str]:
        texts = [f"{number} {'w ' * (k % 7)}{k}" for k in range(6)]
        return [
            text
            for text in texts
            if server.translate(text).values["translations"][0]["text"] != turned(text)
        ]

    futures = [later(client, number) for number in range(64)]
    assert [future.result() for future in futures] == [[]] * 64
    assert server.metric("jaxformer_sentences_total") == 64 * 6
    assert 1 < server.translator.most <= 16


def test_a_late_sentence_joins_the_search_in_flight(serve, later):
    server = serve()
    server.translator.gate.clear()
    first = later(server.translate, "a b c d e f g h")
    server.until(lambda: len(server.translator.begun) == 1)
    second = later(server.translate, "z")
    server.until(lambda: server.metric("jaxformer_queue_sentences") == 1)
    server.translator.gate.set()
    assert second.result().status == first.result().status == 200
    assert server.translator.most == 2


# Health and metrics ---------------------------------------------------------------


def test_it_is_healthy_only_when_it_is_warm(serve):
    groups = [["a", "b"], ["c " * 51, "d e", ""]]
    server = serve(warm_up=[*groups, ["f"] * 9, []], ready=False)
    cold = server.ask("/health")
    assert (cold.status, cold.values["status"]) == (503, "starting")
    refused = server.translate(SENTENCE)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "compiled" in refused.error
    server.translator.gate.set()
    server.until_ready()
    assert server.ask("/health").values == {
        "status": "ready", "direction": "en-de", "n_best": BEAM,
    }  # fmt: skip
    assert server.translator.begun == ["a", "b", "d e", "", *["f"] * 9]
    assert server.translator.most == 4  # never more than --max_batch


def test_metrics_count_what_was_asked_and_done(serve):
    server = serve()
    server.translate(["ab cd", "ef"])
    server.translate("x", n_best=9)
    server.ask("/somewhere/else")
    requests = "jaxformer_requests_total"
    assert server.metric(requests, path="/translate", status="200") == 1
    assert server.metric(requests, path="/translate", status="400") == 1
    assert server.metric(requests, path="other", status="404") == 1
    assert server.metric("jaxformer_sentences_total") == 2
    assert server.metric("jaxformer_tokens_total") == 3 + 2
    assert server.metric("jaxformer_request_seconds_count", path="/translate") == 2
    assert server.metric("jaxformer_batch_sentences_sum") == 2 + 1
    assert server.metric("jaxformer_search_sentences") == 0
    kind = server.ask("/metrics").headers["content-type"]
    assert kind.startswith("text/plain; version=")


def test_the_page_is_one_file_that_asks_nobody_else(serve):
    reply = serve().ask("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    text = reply.body.decode()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "@import" not in text
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert serve().ask("/", method="HEAD").body == b""


# The end --------------------------------------------------------------------------


def test_what_was_accepted_is_finished_before_the_end(serve, later):
    server = serve(max_batch=1)
    server.translator.gate.clear()
    replies = [later(server.translate, f"w{n}") for n in range(4)]
    server.until(lambda: server.metric("jaxformer_queue_sentences") == 3)
    answered = server.metric("jaxformer_requests_total")
    server.service.stop()
    threading.Timer(0.3, server.translator.gate.set).start()
    found = [reply.result() for reply in replies]
    assert [reply.status for reply in found] == [200] * 4
    server.end()
    assert server.error is None
    assert server.result["sentences"] == 4
    assert server.result["requests"] == answered + 1 + 4  # one asked for metrics
    with pytest.raises(ConnectionError):
        server.ask("/health")


def test_the_end_comes_even_if_an_answer_does_not(serve, later):
    server = serve(max_batch=1, shutdown_timeout=0.3)
    server.translator.gate.clear()
    replies = [later(server.translate, f"w{n}") for n in range(3)]
    server.until(lambda: server.metric("jaxformer_queue_sentences") == 2)
    start = time.monotonic()
    server.service.stop()
    for reply in replies:
        assert reply.result().status == 503
        assert "shutting down" in reply.result().error
    server.end()
    assert time.monotonic() - start < 5
    assert server.error is None


@pytest.mark.parametrize("warm", [True, False])
def test_a_failure_of_the_model_ends_the_server(serve, later, warm):
    server = serve(warm_up=[["a"]], ready=False)
    if warm:
        server.translator.gate.set()
        server.until_ready()
        server.translator.gate.clear()
        replies = [later(server.translate, "first")]
        server.until(lambda: "first" in server.translator.begun)
        replies += [later(server.translate, f"w{n}") for n in range(5)]
        server.until(lambda: server.metric("jaxformer_queue_sentences") == 5)
    server.translator.fault = RuntimeError("out of memory")
    server.translator.gate.set()
    if warm:
        for reply in replies:
            assert reply.result().status == 503
            assert "translating failed" in reply.result().error
    server._thread.join(10)  # it ends by itself
    assert server.error is server.translator.fault
