"""The command line with a convolutional model."""

import jax
import numpy as np
import pytest

from tests.commands.runs import last_state, page_data

pytestmark = pytest.mark.slow

MODEL = """\
    config.model = type(config)(
        {
            "architecture": "convolutional", "encoder_layers": 1, "decoder_layers": 1,
            "d_model": 32, "kernel_width": 3, "max_dilation": 1, "dropout": 0.1,
            "max_positions": 64, "dtype": "float32",
        }
    )
    config.optimizer.learning_rate_scale = 2.0
    config.training.update(eval_every=1000, average=1)
    return config
"""


@pytest.fixture(scope="module")
def train(toy, command, tmp_path_factory):
    """Train for some updates."""
    folder = tmp_path_factory.mktemp("convolutional")
    text = toy.config.read_text().replace("    return config\n", MODEL)
    (folder / "config.py").write_text(text)

    def run(name, steps):
        flags = f"--config={folder / 'config.py'}", f"--config.training.steps={steps}"
        answer = command("train", *flags, toy.flags[1], workdir=folder / name)
        assert answer.result["step"] == steps
        return folder / name

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


def test_it_learns_is_checked_and_shows_its_cross_attention(
    workdir, command, toy, tmp_path
):
    assert command("evaluate", workdir=workdir).result["bleu"] > 20
    checked = command("check", workdir=workdir).result
    linear, convolution = 32 * 34, 32 * 64 * 3 + 2 * 64
    count = 96 * 33 + 2 * 64 * 32 + 6 * linear + 2 * convolution
    assert checked["parameters"] == count
    page = tmp_path / "page.html"
    flags = "visualize", f"--output={page}"
    answer = command(*flags, workdir=workdir, stdin=toy.test[:1])
    assert answer.result["sentences"] == 1
    assert page_data(page)["layers"] == {"cross": 1}
