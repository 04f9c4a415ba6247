"""The command line with a second architecture: nothing but `models` names the first."""

import jax
import numpy as np
import pytest

from jaxformer.models.architectures import ARCHITECTURES
from tests.commands.runs import last_state, page_data
from tests.models.recurrent import RecurrentConfig, RecurrentModel

pytestmark = pytest.mark.slow

MODEL = """\
    config.model = type(config)(
        {"architecture": "recurrent", "d_model": 32, "dropout": 0.1}
    )
    config.optimizer.learning_rate_scale = 4.0
    config.batches.update(layout="buckets", max_shapes=2, executor="tf.data")
    config.training.update(eval_every=1000, average=1)
    return config
"""


@pytest.fixture(scope="module")
def train(toy, command, tmp_path_factory):
    """Train for some updates; the architecture is known while tests run."""
    folder = tmp_path_factory.mktemp("recurrent")
    text = toy.config.read_text().replace("    return config\n", MODEL)
    (folder / "config.py").write_text(text)

    def run(name, steps):
        flags = f"--config={folder / 'config.py'}", f"--config.training.steps={steps}"
        answer = command("train", *flags, toy.flags[1], workdir=folder / name)
        assert answer.result["step"] == steps
        return folder / name

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "recurrent", (RecurrentConfig, RecurrentModel))
        yield run


@pytest.fixture(scope="module")
def workdir(train):
    """A run that stopped at update 20, then resumed."""
    train("run", 20)
    return train("run", 100)


def test_a_resumed_run_equals_an_uninterrupted_one(workdir, train):
    runs = workdir, train("uninterrupted", 100)
    states = (last_state(each, "params", "opt_state") for each in runs)
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_it_learns_is_checked_and_shows_its_cross_attention(
    workdir, command, toy, tmp_path
):
    assert command("evaluate", workdir=workdir).result["bleu"] > 20
    checked = command("check", workdir=workdir).result
    assert checked["parameters"] == (96 + 4 * 3 * 32 + 2 * 32) * 32
    page = tmp_path / "page.html"
    flags = "visualize", f"--output={page}"
    answer = command(*flags, workdir=workdir, stdin=toy.test[:1])
    assert answer.result["sentences"] == 1
    assert page_data(page)["layers"] == {"cross": 1}
    flags += ("--attention=encoder",)
    complaint = command(*flags, workdir=workdir, stdin=["bo"]).complaint
    assert "attention='encoder' is none of: cross" in complaint


def test_what_the_model_cannot_do_is_refused(workdir, command, tmp_path, monkeypatch):
    flags = "export", f"--output={tmp_path / 'new'}"
    for program in ("ctranslate2", "huggingface", "stablehlo"):
        complaint = command(*flags, f"--format={program}", workdir=workdir).complaint
        assert "model.architecture=recurrent cannot be exported" in complaint
    monkeypatch.setattr(RecurrentModel, "attention", lambda *_: None)
    flags = "visualize", f"--output={tmp_path / 'page.html'}"
    complaint = command(*flags, workdir=workdir, stdin=["bo"]).complaint
    assert "model has no attention" in complaint
    assert list(tmp_path.iterdir()) == []
