"""The command line with other architectures: nothing but `models` names them."""

import http.client
import re
from contextlib import closing
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxformer.models.architectures import ARCHITECTURES
from tests.commands.runs import last_state, page_data, pair_flags

pytestmark = pytest.mark.slow

STEPS = 60


class Case(NamedTuple):
    """An architecture in a run of seconds."""

    model: dict  # the section of the config
    peak_learning_rate: float
    parameters: int  # those of a vocabulary of 96 included


CASES = {
    "recurrent": Case(
        {
            "architecture": "recurrent", "cell": "lstm", "encoder_layers": 1,
            "decoder_layers": 1, "d_model": 32, "attention": "dot",
            "attention_window": None, "feeding": "none", "dropout": 0.02,
            "dtype": "float32",
        },
        peak_learning_rate=4 * (32 * 40) ** -0.5,
        parameters=96 * 32 + 2 * 64 * 49 + 128 * 65 + 3 * 32 * 32 + 32,
    ),
    "convolutional": Case(
        {
            "architecture": "convolutional", "encoder_layers": 1, "decoder_layers": 1,
            "d_model": 32, "kernel_width": 3, "max_dilation": 1, "dropout": 0.1,
            "max_positions": 64, "dtype": "float32",
        },
        peak_learning_rate=2 * (32 * 40) ** -0.5,
        parameters=96 * 33 + 2 * 64 * 32 + 6 * 32 * 34 + 2 * (32 * 64 * 3 + 2 * 64),
    ),
}  # fmt: skip
CHANGES = """\
    config.model = type(config)({model})
    config.optimizer.peak_learning_rate = {peak_learning_rate}
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
    return train("run", STEPS)


def test_a_resumed_run_equals_an_uninterrupted_one(workdir, train):
    runs = workdir, train("uninterrupted", STEPS)
    states = (last_state(each, "params", "opt_state") for each in runs)
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.usefixtures("quick_check")
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


def test_it_aligns_by_its_cross_attention(workdir, command, toy, tmp_path):
    pairs = [(source, toy.translate(source)) for source in toy.test[:3]]
    flags, output = pair_flags(tmp_path, pairs), tmp_path / "attention.npz"
    lines = command("align", *flags, f"--output={output}", workdir=workdir).lines
    with np.load(output) as arrays:
        for number, (line, (source, _)) in enumerate(zip(lines, pairs, strict=True)):
            words = source.split()
            links = [tuple(map(int, link.split("-"))) for link in line.split()]
            assert [t for _, t in links] == [*range(len(words))]
            assert {s for s, _ in links} <= {*range(len(words))}
            target, of_source = (
                arrays[f"{number}/{key}"] for key in ("target", "source")
            )
            for kind, size in (("encoder", of_source), ("decoder", target)):
                assert arrays[f"{number}/{kind}"].shape == (0, 1, len(size), len(size))
            cross = arrays[f"{number}/cross"]
            assert cross.shape == (1, 1, len(target), len(of_source))
            np.testing.assert_allclose(cross.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("train", ["convolutional"], indirect=True, scope="module")
def test_pairs_longer_than_its_positions_are_refused(workdir, command, tmp_path):
    """By number, in one line; it has 64 positions. A score of translations has none."""
    (tmp_path / "short").mkdir()
    pairs = [("bo da", "SU RI"), ("bo", "SU " * 64)]
    short = pair_flags(tmp_path / "short", pairs[:1])
    flags = pair_flags(tmp_path, pairs)
    answer = command("evaluate", *flags, workdir=workdir)
    assert "leave out 1 of 2 pairs, which have more pieces than" in answer.err
    expected = command("evaluate", *short, workdir=workdir).result
    assert answer.result["nll"] == expected["nll"]
    for mode, *others in (["align"], ["score"], ["score", "--json"]):
        complaint = command(mode, *flags, *others, workdir=workdir).complaint
        assert "pair 2" in complaint
        assert "65 pieces on a side" in complaint
        assert "model.max_positions=64; shorten it" in complaint


@pytest.mark.parametrize("train", ["recurrent"], indirect=True, scope="module")
def test_it_is_served(workdir, start):
    few = "--max_batch=1", "--max_source_length=8"  # programs to compile
    server = start(1, "--mode=serve", "--listen=0", f"--workdir={workdir}", *few)
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
    for program in ("ctranslate2", "huggingface"):
        complaint = command(*flags, f"--format={program}", workdir=workdir).complaint
        assert f"model.architecture={name} cannot be exported" in complaint
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_attention_has_a_report_without_links(
    workdir, train, command, tmp_path, monkeypatch
):
    model = ARCHITECTURES[train.case.model["architecture"]][1]
    monkeypatch.setattr(model, "attention", lambda *_: None)
    flags = pair_flags(tmp_path, [("bo", "SU")])
    for mode, *others in (
        ["visualize", f"--output={tmp_path / 'page.html'}"],
        ["align", *flags, f"--output={tmp_path / 'attention.npz'}"],
    ):
        complaint = command(mode, *others, workdir=workdir, stdin=["bo"]).complaint
        assert complaint == "this model has no attention to show"
    assert {path.name for path in tmp_path.iterdir()} == {"source", "reference"}
    flags += (f"--output={tmp_path / 'report.html'}", "--examples=1")
    assert command("report", *flags, workdir=workdir).result["sentences"] == 1
