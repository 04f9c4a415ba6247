"""jaxformer serve: a run behind a port; what translate says, it says."""

import http.client
import json
import re
import signal
from contextlib import closing

import pytest

from jaxformer.commands import serve

SERVE = ("--mode=serve", "--listen=0", "--max_batch=1")


def test_examples_are_short_lines_of_the_validation_text(tmp_path):
    def tag_of(line):
        return ">>de<<" * line.startswith(">>de<<")

    assert serve.examples_of(tmp_path, tag_of) == []  # an imported run has no text
    (tmp_path / "corpus").mkdir()
    lines = ["a", "w " * 51, "a", " ", ">>de<<", ">>de<< b", *"cdefg"]
    (tmp_path / "corpus" / "dev.source.txt").write_text("\n".join(lines) + "\n")
    assert serve.examples_of(tmp_path, tag_of) == [*"abcde"]


def ask(port: int, path: str, body: dict | None = None) -> tuple[int, dict]:
    """Send a request to a server; returns status and answer."""
    kind = {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, 60)) as client:
        client.request("POST" if body else "GET", path, json.dumps(body), kind)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.slow
def test_a_run_is_served_until_it_is_asked_to_stop(start, use, trained, toy, tmp_path):
    (tmp_path / "terms").write_text(f"{toy.test[0].split()[0]}\tSU RI\n")
    terms = f"--glossary={tmp_path / 'terms'}"
    expected = use("translate", terms, stdin=toy.test).lines
    assert "SU RI" in expected[0]
    server = start(1, *SERVE, terms, f"--workdir={trained.workdir}")
    server.until(lambda: "serving: en-de on http://127.0.0.1:" in server.stderr())
    port = int(re.search(r"127\.0\.0\.1:(\d+)/", server.stderr())[1])
    server.until(lambda: ask(port, "/ready")[0] == 200)
    assert ask(port, "/health")[1]["n_best"] == 2
    assert toy.dev[0] in ask(port, "/examples")[1]
    status, answer = ask(port, "/translate", {"text": toy.test, "n_best": 2})
    assert status == 200
    assert [each["text"] for each in answer["translations"]] == expected
    _, answer = ask(port, "/translate", {"text": "\n".join(toy.test[:2])})
    assert answer["translations"][0]["text"] == "\n".join(expected[:2])
    pair = {"source": toy.test[0], "target": expected[0]}
    status, shown = ask(port, "/attention", pair)
    assert (status, len(shown["cross"]), len(shown["cross"][0])) == (200, 1, 2)
    assert len(shown["cross"][0][0]) == len(shown["target"])
    result = server.stop()
    assert result["sentences"] == len(toy.test) + 1
    assert result["requests"] >= 3
    assert "stopping: " in server.stderr()


@pytest.mark.slow
def test_a_server_that_still_compiles_stops_at_once(start, trained, tmp_path):
    server = start(
        1, *SERVE, f"--workdir={trained.workdir}",
        found=lambda _: {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "empty")},
    )  # fmt: skip
    server.until(lambda: "serving: " in server.stderr())
    server.processes[0].send_signal(signal.SIGINT)
    assert server.result()["sentences"] == 0
    assert "Traceback" not in server.stderr()
