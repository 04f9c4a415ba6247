"""Training with gradients that tests make NaN in one layer of some updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.corpus.pipeline import examples_of
from jaxformer.runs.config_files import RECORDED
from jaxformer.runs.run import plan_training, prepare_run
from jaxformer.training import step
from tests.commands.runs import config_flags, last_state, losses, metrics

LAYER = "encoder/layer_0/feed_forward"
pytestmark = pytest.mark.slow


@pytest.fixture
def bad_where(monkeypatch):
    """Give a function that makes gradients NaN where a predicate of the state holds."""
    original = step.gradients

    def spoil(is_bad):
        def gradients(model, state, *args, **kwargs):
            def change(path, leaf):
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                is_here = name.startswith(LAYER) & is_bad(state)
                return jnp.where(is_here, jnp.nan, leaf)

            found = original(model, state, *args, **kwargs)
            grads = jax.tree_util.tree_map_with_path(change, found.grads)
            return found._replace(grads=grads)

        for module in ("step", "divergence"):
            monkeypatch.setattr(f"jaxformer.training.{module}.gradients", gradients)

    return spoil


@pytest.fixture
def train(command, toy, tmp_path, monkeypatch):
    """Train for a few updates; the argument is training.on_divergence."""
    for module in ("step", "loop"):
        monkeypatch.setattr(f"jaxformer.training.{module}.MOST_BAD_STEPS", 3)

    def run(policy, *flags):
        short = config_flags(
            "training", steps=12, save_every=2, eval_every=12, log_every=2, average=1,
            on_divergence=policy,
        )  # fmt: skip
        return command("train", *toy.flags, *short, *flags, workdir=tmp_path)

    return run


def test_many_bad_updates_stop_the_run_and_again_after_a_rollback(
    train, toy, tmp_path, bad_where
):
    """Each language has a vocabulary."""
    bad_where(lambda state: state.step >= 4)
    file = tmp_path / "diverged_at_step_5.tsv"
    flags = config_flags("data", shared_vocabulary=False)
    flags += config_flags("model", tied_embeddings="target")
    assert train("stop", *flags).complaint == (
        "training diverged: 3 updates in a row without finite loss and gradient, "
        "the first of them step 5 at data position 4; in its microbatch 1 the "
        f"gradient is first not finite in {LAYER}, going backwards; its sentences "
        f"are in {file}; to skip its data set "
        "training.on_divergence=rollback, or start anew in another run folder with "
        "a lower optimizer.peak_learning_rate"
    )
    with prepare_run(tmp_path, RECORDED) as prepared:
        plan = plan_training(*prepared)
    text = (toy.directory / "train.en").read_text().splitlines()
    sources = [text[index] for index in examples_of(plan, 0, 4)]
    pairs = [f"{source}\t{toy.translate(source)}" for source in sources]
    assert file.read_text().splitlines() == pairs
    assert list(tmp_path.glob("diverged*")) == [file]

    answer = train("rollback", *flags)
    assert answer.complaint == (
        "training diverged again from step 4, on other data; start anew in another run "
        "folder with a lower optimizer.peak_learning_rate"
    )
    assert answer.err.count("resuming at step 4, data position 7") == 1


@pytest.mark.parametrize("first", [pytest.param(4, marks=pytest.mark.nightly), 0])
def test_a_run_skips_one_bad_update_and_the_data_on_which_it_diverged(
    train, tmp_path, bad_where, first
):
    """From checkpoint 4: that of step 6 has two of the three bad updates in it."""

    def is_bad(state):  # by the seed, so that both cases are one program
        index, start = state.data_position, state.seed.astype(jnp.int32)
        return (index == 10) | (index >= start) & (index < start + 3)

    bad_where(is_bad)
    answer = train("rollback", f"--config.training.seed={first}")
    assert answer.result["step"] == 12
    said = f"the first of them step {first + 1} at data position {first}; in its"
    assert said in answer.err
    assert f"resuming at step {first}, data position {first + 3}" in answer.err
    assert answer.err.count("training diverged") == 1
    assert (tmp_path / f"diverged_at_step_{first + 1}.tsv").exists()
    fields = ("step", "data_position", "bad_steps", "skipped")
    assert last_state(tmp_path, *fields) == [12, 15, 0, 1]
    lines = metrics(tmp_path, "train")
    skipped = {line["step"]: line["skipped_updates"] for line in lines}
    assert skipped == {2: 0, 4: 0, 6: 0, 8: 1, 10: 1, 12: 1}
    assert np.isfinite([*losses(tmp_path).values()]).all()


@pytest.mark.nightly
def test_a_rollback_without_a_checkpoint_before_the_bad_updates_loses_nothing(
    train, tmp_path, bad_where
):
    """The only checkpoint left has two of the three bad updates in it."""
    bad_where(lambda state: (state.data_position >= 4) & (state.data_position < 7))
    answer = train("rollback", *config_flags("training", save_every=1, keep=1))
    assert answer.result["step"] == 12
    assert "resuming at step 6, data position 7" in answer.err
    fields = ("step", "data_position", "bad_steps")
    assert last_state(tmp_path, *fields) == [12, 13, 0]


def test_a_finite_loss_above_that_of_a_uniform_guess_is_a_warning(train):
    rate = (
        "--config.optimizer.peak_learning_rate=1000",
        *config_flags("optimizer", warmup_steps=12),
    )
    answer = train("stop", *rate)
    assert answer.result["nll"] > 5
    assert answer.err.count("is worse than 4.56") == 2  # an evaluation and the result
