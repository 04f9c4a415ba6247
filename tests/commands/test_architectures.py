"""The command line with other architectures: nothing but `models` names them."""

import http.client
import re
from contextlib import closing
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxformer.models.architectures import ARCHITECTURES
from tests.commands.runs import last_state, page_data

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    """An architecture in a run of seconds."""

    model: dict  # the section of the config
    learning_rate_scale: float
    parameters: int  # those of a vocabulary of 96 included


CASES = {
    "recurrent": Case(
        {
            "architecture": "recurrent", "cell": "lstm", "encoder_layers": 1,
            "decoder_layers": 1, "d_model": 32, "attention": "dot",
            "attention_window": None, "feeding": "none", "dropout": 0.02,
            "dtype": "float32",
        },
        learning_rate_scale=4.0,
        parameters=96 * 32 + 2 * 64 * 49 + 128 * 65 + 3 * 32 * 32 + 32,
    ),
    "convolutional": Case(
        {
            "architecture": "convolutional", "encoder_layers": 1, "decoder_layers": 1,
            "d_model": 32, "kernel_width": 3, "max_dilation": 1, "dropout": 0.1,
            "max_positions": 64, "dtype": "float32",
        },
        learning_rate_scale=2.0,
        parameters=96 * 33 + 2 * 64 * 32 + 6 * 32 * 34 + 2 * (32 * 64 * 3 + 2 * 64),
    ),
}  # fmt: skip
CHANGES = """\
    config.model = type(config)({model})
    config.optimizer.learning_rate_scale = {learning_rate_scale}
    config.training.update(eval_every=1000, average=1)
    return config
"""


@pytest.fixture(scope="module", params=CASES)
def train(request, toy, command, tmp_path_factory):
    """Train for some updates on packed rows."""
    folder = tmp_path_factory.mktemp(request.param)
    changes = CHANGES.format(**CASES[request.param]._asdict())
    text = toy.config.read_text().replace("    return config\n", changes)
    (folder / "config.py").write_text(text)

    def run(name, steps):
        flags = f"--config={folder / 'config.py'}", f"--config.training.steps={steps}"
        answer = command("train", *flags, toy.flags[1], workdir=folder / name)
        assert answer.result["step"] == steps
        return folder / name

    run.case = CASES[request.param]
    return run


@pytest.fixture(scope="module")
def workdir(train):
    """A run that stopped at update 20, then resumed."""
    train("run", 20)
    return train("run", 100)


def test_a_resumed_run_equals_an_uninterrupted_one(workdir, train):
    runs = workdir, train("uninterrupted", 100)
    states = (last_state(each, "params", "opt_state") for each in runs)
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_it_learns_translates_and_is_checked(workdir, train, command, toy):
    assert command("evaluate", workdir=workdir).result["bleu"] > 20
    lines = command("translate", workdir=workdir, stdin=toy.test).lines
    assert len(set(lines)) > len(toy.test) // 2
    checked = command("check", workdir=workdir).result
    assert checked["parameters"] == train.case.parameters


def test_it_shows_its_cross_attention_alone(workdir, command, toy, tmp_path):
    page = tmp_path / "page.html"
    flags = "visualize", f"--output={page}"
    answer = command(*flags, workdir=workdir, stdin=toy.test[:1])
    assert answer.result["sentences"] == 1
    assert page_data(page)["layers"].keys() == {"cross"}
    flags += ("--attention=encoder",)
    complaint = command(*flags, workdir=workdir, stdin=["bo"]).complaint
    assert "attention='encoder' is none of: cross" in complaint


@pytest.mark.parametrize("train", ["recurrent"], indirect=True, scope="module")
def test_it_is_served(workdir, start):
    server = start(1, "--mode=serve", "--port=0", f"--workdir={workdir}")
    server.until(lambda: "serving: en-de on http://127.0.0.1:" in server.stderr())
    port = int(re.search(r"127\.0\.0\.1:(\d+)/", server.stderr())[1])

    def is_ready():
        with closing(http.client.HTTPConnection("127.0.0.1", port, 60)) as client:
            client.request("GET", "/ready")
            return client.getresponse().status == 200

    server.until(is_ready)
    server.stop()


def test_exports_that_cannot_express_it_are_refused(workdir, train, command, tmp_path):
    name = train.case.model["architecture"]
    flags = "export", f"--output={tmp_path / 'new'}"
    for program in ("ctranslate2", "huggingface", "stablehlo"):
        complaint = command(*flags, f"--format={program}", workdir=workdir).complaint
        assert f"model.architecture={name} cannot be exported" in complaint
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_attention_has_no_pictures(
    workdir, train, command, tmp_path, monkeypatch
):
    model = ARCHITECTURES[train.case.model["architecture"]][1]
    monkeypatch.setattr(model, "attention", lambda *_: None)
    flags = "visualize", f"--output={tmp_path / 'page.html'}"
    complaint = command(*flags, workdir=workdir, stdin=["bo"]).complaint
    assert "model has no attention" in complaint
    assert list(tmp_path.iterdir()) == []
