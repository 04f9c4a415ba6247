"""The load script: what it counts as right, lost and mixed up, and what it reports."""

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "load.py"
SPEC = util.spec_from_file_location("load", SCRIPT)
load = util.module_from_spec(SPEC)
SPEC.loader.exec_module(load)
SENTENCES = [f"{word} {number}" for word in ("ab", "cd") for number in range(10)]


@pytest.fixture
def server():
    """Start a server that reverses sentences, unless it is told another answer."""

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
            elif isinstance(found, int):
                self.answer(found, json.dumps({"error": "busy"}))
            else:
                self.answer(200, json.dumps({"translations": [{"text": found}]}))

        def answer(self, status: int, text: str):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    Handler.answers = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        serving.url = f"http://127.0.0.1:{serving.server_port}/"
        serving.answers = Handler.answers
        yield serving
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
    server.answers["ab 0"] = ["0 ba", "0 ba", answer]
    flags = ("--requests=100", "--clients=4")
    code = load.main([f"--url={server.url}", f"--sentences={file}", *flags])
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    verdicts = ["right"] * 99 + [verdict]
    for name in ("right", "mixed_up", "different", "lost"):
        assert values[name] == verdicts.count(name)
    assert code == (verdict != "right")
    assert (values["requests"], values["clients"]) == (100, 4)
    assert 0 < values["p50_ms"] <= values["p99_ms"] <= values["max_ms"]
    assert values["requests_per_second"] > 0


def test_a_server_that_refuses_at_once_cannot_be_measured(server, tmp_path):
    server.answers["b"] = [400]
    file = tmp_path / "text"
    file.write_text("b\n\na\u2028c\nb\nd\n")
    assert load.read_sentences(file, 2) == ["b", "a\u2028c"]
    with pytest.raises(SystemExit, match="'b' gives 400: busy"):
        load.main([f"--url={server.url}", f"--sentences={file}"])


def test_a_server_that_does_not_start_is_an_error():
    command = [sys.executable, "-c", "print('there is no run')"]
    with pytest.raises(SystemExit, match="there is no run"), load.server(command):
        pass
