"""HTTP itself: malformed and slow requests, pipelines, and the host names answered."""

import contextlib
import http.client
import json
import socket
import time

import pytest

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = (
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)


def exchange(server, *parts: bytes, end: bytes = b"}") -> bytes:
    """Send bytes, with pauses between the parts; returns all that comes back."""
    received = b""
    with socket.create_connection(server.address, 10) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.05)
        while not received.endswith(end) and (more := client.recv(65536)):
            received += more
    return received


MALFORMED = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000, 400),
    (POST + b"Content-Length: -1\r\n\r\n", 400),
    (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (HEALTH.replace(b"1.1", b"1.2"), 400),
    (HEALTH.replace(b"1.1", b"2.0"), 400),
    (HEALTH.replace(b"1.1", b"0.9"), 400),
    (HEALTH.replace(b"\r\n", b"\n"), 400),
    (HEALTH.replace(b"1.1\r\n", b"1.1\n"), 400),
    (HEALTH.replace(b"\r\n\r\n", b"\r\n\n"), 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n2af8\r\n" + b" " * 11_000, 413),
]


def test_malformed_http_is_refused(serve):
    server = serve()
    for sent, status in MALFORMED:
        received = exchange(server, sent, HEALTH)
        assert received.startswith(b"HTTP/1.1 %d " % status), sent
        assert received.count(b"HTTP/1.1") == 1  # the connection is closed
        assert server.translate("a").status == 200


def test_line_feeds_of_a_body_and_pipelined_requests_are_read(serve):
    body = b'{"text":\n"a\\nb"}\n'
    sent = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + HEALTH
    received = exchange(serve(), sent, end=b'"pair_tokens":128}')
    assert received.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.slow
def test_a_client_that_is_too_slow_is_disconnected(serve):
    """Left to itself, uvicorn waits for ever for a request's head."""
    server = serve(request_timeout=0.4)
    slow = [(b"",), (b"GET /hea", b"lth HT"), (HEALTH, b"GET /hea")]
    answers = [server.later(exchange, server, *parts) for parts in slow]
    late = exchange(server, POST, b"Content-Length: 9\r\n\r\n{")
    assert late.startswith(b"HTTP/1.1 408 ")
    assert list(json.loads(late.partition(b"\r\n\r\n")[2])) == ["error"]
    with contextlib.closing(http.client.HTTPConnection(*server.address)) as client:
        for _ in range(9):  # a client that is not slow keeps its connection
            client.request("GET", "/health")
            sock = client.sock
            assert client.getresponse().read()
            assert client.sock is sock
            time.sleep(0.3)
    assert [len(answer.result(5)) > 0 for answer in answers] == [False, False, True]


HOSTS = {
    200: ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "de.example",
          "de.example:443"],
    421: ["evil.example", "localhost.evil.example", "", "*", "[::1", "127.0.0.2"],
}  # fmt: skip


def test_only_given_host_names_are_answered(serve):
    server = serve(site={"hosts": ["de.example"]})
    for status, hosts in HOSTS.items():
        for host in hosts:
            for request in ("/",), ("/ready",), ("/translate", {"text": "a"}):
                assert server.ask(*request, Host=host).status == status, host
    assert serve(site={"hosts": ["*"]}).ask("/ready", Host="de.example").status == 200
