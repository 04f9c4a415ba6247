"""The command line with a second architecture: nothing but `models` names the first."""

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import sacrebleu

from jaxformer.models.architectures import ARCHITECTURES
from jaxformer.training.checkpoint import Checkpoints
from tests.models.recurrent import RecurrentConfig, RecurrentModel

pytestmark = pytest.mark.slow

MODEL = """\
    config.model = type(config)(
        {"architecture": "recurrent", "d_model": 32, "dropout": 0.1}
    )
    config.optimizer.learning_rate_scale = 4.0
    config.training.update(eval_every=1000, average=1)
    return config
"""


@pytest.fixture(scope="module")
def workdir(toy, command, tmp_path_factory):
    """A run that stopped at update 20, then resumed; the architecture is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "recurrent", (RecurrentConfig, RecurrentModel))
        folder = tmp_path_factory.mktemp("recurrent")
        text = toy.config.read_text().replace("    return config\n", MODEL)
        (folder / "config.py").write_text(text)
        train(command, toy, folder / "run", 20)
        train(command, toy, folder / "run", 40)
        yield folder / "run"


def train(command, toy, workdir, steps):
    flags = f"--config={workdir.parent / 'config.py'}", *toy.flags[1:]
    steps = f"--config.training.steps={steps}"
    return command(*flags, steps, f"--workdir={workdir}").result


def translate(command, workdir, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    return command("--mode=translate", f"--workdir={workdir}", stdin=text).lines


def test_a_resumed_run_equals_an_uninterrupted_one(workdir, command, toy):
    whole = workdir.with_name("whole")
    assert train(command, toy, whole, 40)["step"] == 40

    def last_state(folder, field):
        with Checkpoints(folder / "checkpoints", keep=None, scores={}) as checkpoints:
            return checkpoints.restore_parameters(None, field=field)

    for field in ("params", "opt_state"):
        states = last_state(workdir, field), last_state(whole, field)
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, *states)))


def test_evaluate_scores_what_translate_prints(workdir, command, toy):
    found = translate(command, workdir, toy.test)
    expected = sacrebleu.corpus_bleu(found, [[*map(toy.translate, toy.test)]]).score
    result = command("--mode=evaluate", f"--workdir={workdir}").result
    assert result["bleu"] == pytest.approx(expected)
    assert expected > 20


def test_check_counts_its_parameters(workdir, command):
    result = command("--mode=check", f"--workdir={workdir}").result
    d = 32
    assert result["parameters_by_part"] == {
        "embedding": 96 * d, "encoder/input": 3 * d * d, "encoder/state": 3 * d * d,
        "decoder/input": 3 * d * d, "decoder/state": 3 * d * d,
        "output/kernel": 2 * d * d,
    }  # fmt: skip


def test_serve_answers_as_translate_does(workdir, command, toy):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def ask():
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/translate",
            json.dumps({"text": toy.test[0]}).encode(),
            {"Content-Type": "application/json"},
        )
        for _ in range(600):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.URLError:  # not ready yet
                time.sleep(0.05)

    def ask_and_stop():
        try:
            return ask()
        finally:
            signal.raise_signal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask_and_stop)
        flags = f"--port={port}", "--warm_up=0", f"--workdir={workdir}"
        assert command("--mode=serve", *flags).result["sentences"] >= 1
    expected = translate(command, workdir, toy.test[:1])
    assert [each["text"] for each in answer.result()["translations"]] == expected


def test_only_cross_attention_is_shown(workdir, command, toy, tmp_path):
    page = tmp_path / "page.html"
    flags = "--mode=visualize", f"--workdir={workdir}", f"--output={page}"
    assert command(*flags, stdin=toy.test[0].encode()).result["sentences"] == 1
    html = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["layers"] == {"cross": 1}
    complaint = command(*flags, "--attention=encoder", stdin=b"bo").complaint
    assert "attention='encoder' is none of: cross" in complaint


def test_what_the_model_cannot_do_is_refused(workdir, command, tmp_path, monkeypatch):
    flags = f"--workdir={workdir}", f"--output={tmp_path / 'new'}"
    for program in ("ctranslate2", "huggingface", "stablehlo"):
        complaint = command("--mode=export", f"--format={program}", *flags).complaint
        assert "model.architecture=recurrent cannot be exported" in complaint
    monkeypatch.setattr(RecurrentModel, "attention", lambda *_: None)
    page = f"--output={tmp_path / 'page.html'}"
    complaint = command("--mode=visualize", flags[0], page, stdin=b"bo").complaint
    assert "model has no attention" in complaint
    assert list(tmp_path.iterdir()) == []
