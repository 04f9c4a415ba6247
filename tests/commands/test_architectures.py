"""The command line with other architectures: nothing but `models` names them."""

import http.client
import re
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest

from jaxformer.models.architectures import ARCHITECTURES
from tests.commands.runs import page_data, pair_flags
from tests.models.tiny import side_of

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
            "attention_window": None, "attention_reading": "soft", "feeding": "none",
            "dropout": 0.02, "dtype": "float32", "tied_embeddings": "all",
            "bidirectional": True,
        },
        peak_learning_rate=4 * (32 * 40) ** -0.5,
        parameters=96 * 32 + 2 * 64 * 49 + 128 * 65 + 3 * 32 * 32 + 32,
    ),
    "convolutional": Case(
        {
            "architecture": "convolutional", "encoder_layers": 1, "decoder_layers": 1,
            "d_model": 32, "kernel_width": 3, "max_dilation": 1, "dropout": 0.1,
            "max_positions": 64, "dtype": "float32", "tied_embeddings": "all",
            "separable": False,
        },
        peak_learning_rate=2 * (32 * 40) ** -0.5,
        parameters=96 * 33 + 2 * 64 * 32 + 6 * 32 * 34 + 2 * (32 * 64 * 3 + 2 * 64),
    ),
}  # fmt: skip
SHARED = {"d_model": 32, "dropout": 0.02, "dtype": "float32", "tied_embeddings": "all"}
HYBRIDS = {
    "hybrid": Case(
        {
            "architecture": "hybrid", **SHARED,
            "encoder": side_of("encoder", "transformer", d_ff=64, num_heads=4),
            "decoder": side_of("decoder", "recurrent"),
        },
        peak_learning_rate=2 * (32 * 40) ** -0.5,
        parameters=96 * 32 + 4 * 32 * 32 + 2 * 32 * 64 + 96 + 4 * 32
        + 4 * 32 * 65 + 3 * 32 * 32 + 32,
    ),
    "another hybrid": Case(
        {
            "architecture": "hybrid", **SHARED,
            "encoder": side_of("encoder", "recurrent"),
            "decoder": side_of("decoder", "convolutional"),
        },
        peak_learning_rate=2 * (32 * 40) ** -0.5,
        parameters=96 * 33 + 64 * 32 + 2 * 64 * 49 + 4 * 32 * 34 + 32 * 64 * 3 + 2 * 64,
    ),
}  # fmt: skip
CHANGES = """\
    config.model = type(config)({model})
    config.optimizer.peak_learning_rate = {peak_learning_rate}
    config.training.update(eval_every=1000, average=1)
    return config
"""


def write_config(toy, folder, architecture):
    """Write the toy's config with another architecture, if it is one of the cases."""
    text, cases = toy.config.read_text(), CASES | HYBRIDS
    if architecture in cases:
        changes = CHANGES.format(**cases[architecture]._asdict())
        text = text.replace("    return config\n", changes)
    (folder / "config.py").write_text(text)
    return folder / "config.py"


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return (CASES | HYBRIDS)[request.param]


@pytest.fixture(scope="module")
def workdir(case, toy, command, tmp_path_factory):
    """Train for some updates on packed rows."""
    folder = tmp_path_factory.mktemp("other")
    (name,) = (name for name, each in (CASES | HYBRIDS).items() if each is case)
    config = write_config(toy, folder, name)
    flags = f"--config={config}", f"--config.training.steps={STEPS}", toy.flags[1]
    assert command("train", *flags, workdir=folder / "run").result["step"] == STEPS
    return folder / "run"


@pytest.mark.usefixtures("quick_check")
@pytest.mark.parametrize("case", [*CASES, *HYBRIDS], indirect=True, scope="module")
def test_it_learns_translates_and_is_checked(workdir, case, command, toy):
    assert command("evaluate", workdir=workdir).result["bleu"] > 20
    lines = command("translate", workdir=workdir, stdin=toy.test).lines
    assert len(set(lines)) > len(toy.test) // 2
    checked = command("check", workdir=workdir).result
    assert checked["parameters"] == case.parameters


def test_it_shows_its_cross_attention_alone(workdir, command, toy, tmp_path):
    page, output = tmp_path / "page.html", tmp_path / "attention.npz"
    flags = "visualize", f"--output={page}"
    command(*flags, workdir=workdir, stdin=toy.test[:1])
    assert page_data(page)["layers"].keys() == {"cross"}
    flags += ("--attention=encoder",)
    complaint = command(*flags, workdir=workdir, stdin=["bo"]).complaint
    assert "attention='encoder' is none of: cross" in complaint
    flags = pair_flags(tmp_path, [(line, toy.translate(line)) for line in toy.test])
    command("align", *flags, f"--output={output}", workdir=workdir)
    with np.load(output) as arrays:
        source, target = len(arrays["0/source"]), len(arrays["0/target"])
        assert arrays["0/encoder"].shape == (0, 1, source, source)
        assert arrays["0/decoder"].shape == (0, 1, target, target)
        assert arrays["0/cross"].shape == (1, 1, target, source)
        np.testing.assert_allclose(arrays["0/cross"].sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("case", ["hybrid"], indirect=True, scope="module")
def test_a_hybrid_shows_the_maps_of_both_sides(workdir, command, toy, tmp_path):
    flags = "visualize", f"--output={tmp_path / 'page.html'}"
    command(*flags, workdir=workdir, stdin=toy.test[:1])
    data = page_data(tmp_path / "page.html")
    assert (data["layers"], data["heads"]) == ({"encoder": 1, "cross": 1}, 4)


@pytest.mark.parametrize("case", ["convolutional"], indirect=True, scope="module")
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
        assert "max_positions=64 of the model; shorten it" in complaint


@pytest.mark.parametrize("case", ["recurrent"], indirect=True, scope="module")
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


def test_exports_that_cannot_express_it_are_refused(workdir, case, command, tmp_path):
    name = case.model["architecture"]
    flags = "export", f"--output={tmp_path / 'new'}"
    for program in ("ctranslate2", "huggingface"):
        complaint = command(*flags, f"--format={program}", workdir=workdir).complaint
        assert f"model.architecture={name} cannot be exported" in complaint
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_attention_has_a_report_without_links(
    workdir, case, command, tmp_path, monkeypatch
):
    model = ARCHITECTURES[case.model["architecture"]][1].replace(":", ".")
    monkeypatch.setattr(f"jaxformer.models.{model}.attention", lambda *_: None)
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
