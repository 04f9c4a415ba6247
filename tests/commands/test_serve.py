"""--mode=serve: a run behind a port; what --mode=translate says, it says."""

import http.client
import json
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

from jaxformer import processes
from jaxformer.commands import serve
from jaxformer.errors import InputError
from jaxformer.serving.server import listen

ALONE = ("--mode=serve", "--port=0")


def test_a_port_in_use_is_refused_before_anything_is_read(command, tmp_path):
    with closing(listen("127.0.0.1", 0)) as opened:
        flags = (f"--port={opened.getsockname()[1]}", f"--workdir={tmp_path}")
        complaint = command("--mode=serve", *flags).complaint
    assert flags[0] in complaint
    assert "choose another port" in complaint


def test_a_folder_without_a_run_is_refused(command, tmp_path):
    assert "there is no run" in command(*ALONE, f"--workdir={tmp_path}").complaint


def test_limits_that_contradict_each_other_are_refused(command, tmp_path):
    flags = ("--max_sentences=9", "--max_queue=8", f"--workdir={tmp_path}")
    complaint = command(*ALONE, *flags).complaint
    assert "--max_sentences=9 would never find room in --max_queue=8" in complaint


def test_packages_that_are_not_installed_are_named(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "jaxformer.serving.server")
    complaint = command(*ALONE, f"--workdir={tmp_path}").complaint
    assert "needs uvicorn" in complaint
    assert "pip install 'jaxformer[serve]'" in complaint


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(processes, "are_several", lambda: True)
    with pytest.raises(InputError, match="is for one process"):
        serve.run(SimpleNamespace())


@pytest.mark.parametrize("count", [0, 1, 2, 9, 100])
def test_it_warms_up_with_all_lengths_alone_and_with_all_at_once(tmp_path, count):
    (tmp_path / "corpus").mkdir()
    lines = [f"{'w' * (7 * n % 50)}" for n in range(50)]
    (tmp_path / "corpus" / "dev.source.txt").write_text("\n".join(lines) + "\n")
    sentences = serve.dev_sentences(tmp_path, count)
    assert sentences == lines[:count]
    *alone, together = serve.warm_up_groups(sentences)
    assert together == sentences
    assert len(alone) == min(count, serve.ALONE)
    if count:
        assert alone[0] == [min(sentences, key=len)]
        assert alone[-1] == [max(sentences, key=len)]


def test_a_run_without_text_warms_up_with_other_sentences(tmp_path):
    assert len(serve.dev_sentences(tmp_path, 20)) == 20


def ask(port: int, path: str, body: dict | None = None) -> tuple[int, dict]:
    """Ask a server; its status and answer."""
    kind = {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, 60)) as client:
        if body is None:
            client.request("GET", path)
        else:
            client.request("POST", path, json.dumps(body), kind)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_is_served_until_it_is_asked_to_stop(
    start, command, trained, toy, number
):
    workdir = f"--workdir={trained.workdir}"
    text = "".join(f"{line}\n" for line in toy.test).encode()
    expected = command("--mode=translate", workdir, stdin=text).lines

    server = start(1, *ALONE, workdir, devices=1)
    server.until(lambda: "serving: en-de on http://127.0.0.1:" in server.stderr(0))
    port = int(re.search(r"127\.0\.0\.1:(\d+)/", server.stderr(0))[1])
    server.until(lambda: ask(port, "/health")[0] == 200)
    assert ask(port, "/health")[1]["n_best"] == 2

    def translate(line: str) -> str:
        status, answer = ask(port, "/translate", {"text": line, "n_best": 2})
        assert status == 200
        return answer["translations"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(translate, toy.test)) == expected
    pair = {"source": toy.test[0], "target": expected[0]}
    status, shown = ask(port, "/attention", pair)
    assert (status, len(shown["cross"]), len(shown["cross"][0])) == (200, 1, 2)
    assert len(shown["cross"][0][0]) == len(shown["target"])

    assert [process.poll() for process in server.processes] == [None]
    server.processes[0].send_signal(number)
    results = server.results()
    assert results["sentences"] == len(toy.test)
    assert results["requests"] > len(toy.test)
    assert "stopping: 0 in the search" in server.stderr(0)


@pytest.mark.slow
def test_a_server_that_still_compiles_stops_at_once(start, trained, tmp_path):
    server = start(
        1, *ALONE, f"--workdir={trained.workdir}", devices=1,
        found=lambda _: {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "empty")},
    )  # fmt: skip
    server.until(lambda: "serving: " in server.stderr(0))
    server.processes[0].send_signal(signal.SIGTERM)
    assert server.results()["sentences"] == 0
    assert "Traceback" not in server.stderr(0)
