"""The load script: what it counts as right, lost and mixed up, and what it reports."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import load

SENTENCES = [f"{word} {number}" for word in ("ab", "cd") for number in range(10)]


@pytest.fixture
def server(monkeypatch):
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
            found = 413 if len(sentence) > 1000 else found
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

    values = {"P99_BOUND": 1e9, "LARGE_BOUND": 1e9, "HEAD_START": 0.0}
    for name, value in values.items():
        monkeypatch.setattr(load, name, value)
    Handler.answers = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"--url=http://127.0.0.1:{serving.server_port}/", Handler.answers
        serving.shutdown()
        thread.join()


@pytest.fixture
def measure(server, tmp_path, capsys):
    """Give the script as a function of the answers to "ab 0" and of flags."""
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress("\n".join([*SENTENCES, "", "ab 0"]).encode()))

    def run(answers, *flags):
        server[1]["ab 0"] = answers
        fixed = server[0], f"--sentences={file}", "--requests=100", "--clients=4"
        code = load.main([*fixed, *flags])
        *printed, values = capsys.readouterr().out.splitlines()
        return code, json.loads(values) | {"printed": printed}

    return run


VERDICTS = {"0 ba": "right", "1 ba": "mixed_up", "x": "different", 503: "lost",
            0: "lost"}  # fmt: skip


@pytest.mark.parametrize(("answer", "verdict"), VERDICTS.items())
def test_a_wrong_answer_is_found(measure, answer, verdict):
    code, values = measure(["0 ba", "0 ba", answer])
    assert code == (verdict != "right")
    verdicts = ["right"] * 99 + [verdict]
    for name in load.VERDICTS:
        assert values[name] == verdicts.count(name)
    latencies = [values[f"p{q}_ms"] for q in (50, 95, 99, 100)]
    assert 0 < latencies[0] <= latencies[1] <= latencies[2] <= latencies[3]
    assert values["requests_per_second"] > 0


@pytest.mark.parametrize(("answer", "wrong"), [("0 ba", 0), ("1 ba", 1), (503, 1)])
def test_a_wrong_answer_beside_a_large_client_is_found(measure, answer, wrong):
    """Of 1 request alone and 5 of the first 100, the next is one beside it."""
    code, values = measure(["0 ba"] * 6 + [answer], "--large")
    assert (code, values["not_right_beside_large"]) == (wrong, wrong)
    assert values["large_requests"] > 0
    assert values["large_requests_without_answer"] == 0
    rows = [line.split(" | ")[:3] for line in values["printed"] if "client" in line]
    assert rows == [
        ["| 1 client", "20", "20"],
        ["| 4 clients", "100", "100"],
        ["| 4 clients, and one of large requests", "100", str(100 - wrong)],
    ]


def test_latencies_out_of_bounds_do_not_hold(measure, monkeypatch):
    for bound in ("P99_BOUND", "LARGE_BOUND"):
        with monkeypatch.context() as patch:
            patch.setattr(load, bound, 0.0)
            assert measure([], "--large")[0] == 1


def test_a_server_that_refuses_at_once_cannot_be_measured(server, tmp_path, capsys):
    url, answers = server
    answers["b"] = [400]
    file = tmp_path / "text"
    file.write_text("b\n")
    assert load.main([url, f"--sentences={file}"]) == 2
    assert "'b' gives 400: busy" in capsys.readouterr().err


def test_a_server_that_does_not_start_is_an_error(tmp_path, capsys):
    flags = [f"--workdir={tmp_path}", "--sentences=x", "--flags=--max_batch=x"]
    assert load.main(flags) == 2
    assert "--max_batch=x is not a whole number" in capsys.readouterr().err
