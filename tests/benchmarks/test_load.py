"""The load script: what it counts as right, lost and mixed up, and what it reports."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import load

SENTENCES = [f"{word} {number}" for word in ("ab", "cd") for number in range(10)]


@pytest.fixture
def server():
    """Start a server that reverses sentences, unless `answers` has another answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        answers: dict[str, list[str | int]]  # the next ones to a sentence

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sentence = json.loads(body)["text"]
            later = self.answers.get(sentence)
            found = later.pop(0) if later else sentence[::-1]
            if found == 0:
                self.close_connection = True
                return
            busy = isinstance(found, int)
            values = {"error": "busy"} if busy else {"translations": [{"text": found}]}
            text = json.dumps(values).encode()
            self.send_response(found if busy else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    Handler.answers = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"--url=http://127.0.0.1:{serving.server_port}/", Handler.answers
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("0 ba", "right"), ("1 ba", "mixed_up"), ("x", "different"),
        (503, "lost"), (0, "lost"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_found(server, answer, verdict, tmp_path, capsys):
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress("\n".join([*SENTENCES, "", "ab 0"]).encode()))
    url, answers = server
    answers["ab 0"] = ["0 ba", "0 ba", answer]
    flags = (f"--sentences={file}", "--requests=100", "--clients=4")
    assert load.main([url, *flags]) == (verdict != "right")
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    verdicts = ["right"] * 99 + [verdict]
    for name in load.VERDICTS:
        assert values[name] == verdicts.count(name)
    assert 0 < values["p50_ms"] <= values["p95_ms"] <= values["p99_ms"]
    assert values["p99_ms"] <= values["max_ms"]
    assert values["requests_per_second"] > 0


def test_a_server_that_refuses_at_once_cannot_be_measured(server, tmp_path, capsys):
    url, answers = server
    answers["b"] = [400]
    file = tmp_path / "text"
    file.write_text("b\n")
    assert load.main([url, f"--sentences={file}"]) == 2
    assert "'b' gives 400: busy" in capsys.readouterr().err


def test_a_server_that_does_not_start_is_an_error(tmp_path, capsys):
    assert (
        load.main([f"--workdir={tmp_path}", "--sentences=x", "--flags=--port=x"]) == 2
    )
    assert "--port=x is not a whole number" in capsys.readouterr().err
