"""The load script: what it counts as right, lost and mixed up, and what it reports."""

import gzip
import importlib.util
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "load.py"


def load():
    """benchmarks/load.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("load", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["load"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


load = load()
SENTENCES = [f"{word} {number}" for word in ("ab", "cd") for number in range(10)]


@pytest.fixture
def server():
    """Start a server that turns sentences around, unless it is told another answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        answers: dict[str, list[str | int]]  # the next ones to a sentence

        def do_GET(self):
            self.answer(200, "jaxformer_batch_sentences_sum 6.0\n")

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
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        serving.url = f"http://127.0.0.1:{serving.server_port}/"
        serving.answers = Handler.answers
        yield serving
        serving.shutdown()
        thread.join()


@pytest.fixture
def run(server, tmp_path, capsys):
    """Run the script against the server; gives exit code and result."""
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress("\n".join([*SENTENCES, "", "ab 0"]).encode()))

    def measure(*flags):
        code = load.main([f"--url={server.url}", f"--sentences={file}", *flags])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return measure


def test_right_answers_are_counted_and_timed(run):
    code, values = run("--requests=90", "--clients=8")
    assert code == 0
    assert (values["requests"], values["right"], values["clients"]) == (90, 90, 8)
    assert values["lost"] == values["mixed_up"] == values["different"] == 0
    assert 0 < values["p50_ms"] <= values["p99_ms"] <= values["max_ms"]
    assert values["requests_per_second"] > 0


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("1 ba", "mixed_up"), ("else", "different"), (503, "lost"), (0, "lost")],
)
def test_one_wrong_answer_among_many_is_found(run, server, answer, kind, capsys):
    server.answers["ab 0"] = ["0 ba", "0 ba", answer]
    code, values = run("--requests=100", "--clients=4")
    assert code == 1
    assert (values["right"], values[kind]) == (99, 1)


def test_a_server_that_refuses_at_once_cannot_be_measured(server, tmp_path, capsys):
    server.answers["ab 0"] = [400]
    file = tmp_path / "text"
    file.write_text("ab 0\n")
    assert load.main([f"--url={server.url}", f"--sentences={file}"]) == 1
    assert "'ab 0' gives 400: busy" in capsys.readouterr().err


def test_distinct_lines_are_read_in_order(tmp_path):
    file = tmp_path / "text"
    file.write_text("b\n\na\u2028c\nb\nd\n")
    assert load.read_sentences(file, 2) == ["b", "a\u2028c"]


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error(tmp_path, capsys):
    file = tmp_path / "text"
    file.write_text("a\n")
    code = load.main([f"--workdir={tmp_path / 'none'}", f"--sentences={file}"])
    assert code == 1
    assert "there is no run in" in capsys.readouterr().err
