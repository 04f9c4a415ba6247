"""Training with gradients that tests make NaN in one layer of some updates."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config_files import RECORDED
from jaxformer.data.pipeline import updates
from jaxformer.run import plan_training, prepare_run
from jaxformer.training import step
from jaxformer.training.checkpoint import Checkpoints

LAYER = "encoder/layer_0/feed_forward"
TINY = (
    "--config.training.steps=12",
    "--config.training.save_every=2",
    "--config.training.eval_every=12",
    "--config.training.log_every=2",
    "--config.training.average=1",
    "--config.training.max_bad_steps=3",
)
pytestmark = pytest.mark.slow


@pytest.fixture
def bad_where(monkeypatch):
    """Give a function that makes gradients NaN where a predicate of the state holds."""
    original = step.gradients

    def spoil(is_bad):
        def gradients(model, state, batch, microbatch, **kwargs):
            found = original(model, state, batch, microbatch, **kwargs)
            encoder = found.grads["encoder"]
            layer = encoder["layer_0"]
            block = layer["feed_forward"]
            bias = jnp.where(is_bad(state), jnp.nan, block["hidden"]["bias"])
            block = {**block, "hidden": {**block["hidden"], "bias": bias}}
            encoder = {**encoder, "layer_0": {**layer, "feed_forward": block}}
            return found._replace(grads={**found.grads, "encoder": encoder})

        for module in ("step", "divergence"):
            monkeypatch.setattr(f"jaxformer.training.{module}.gradients", gradients)

    return spoil


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def train(command, toy, workdir):
    """Train for a few updates; the argument is training.on_divergence."""
    flags = (*toy.flags, *TINY, f"--workdir={workdir}")
    return lambda policy: command(*flags, f"--config.training.on_divergence={policy}")


def last_state(workdir):
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return [
            int(checkpoints.restore_parameters(None, field=field))
            for field in ("step", "data_position", "bad_steps", "skipped")
        ]


def pairs_at(workdir, position):
    """The sentence pairs of an update, read from the batches of its data position."""
    run, prepared = prepare_run(workdir, RECORDED)
    corpus, tokenizer = prepared.train, prepared.tokenizer
    plan = plan_training(run, prepared)
    update = next(updates(corpus, plan, seed=0, start=position, executor="python"))
    found = []
    for batch in update:
        for row, segments in enumerate(batch.source_segments):
            for number in range(1, segments.max() + 1):
                ids = (
                    batch.source[row][segments == number],
                    batch.target[row][batch.target_segments[row] == number],
                )
                found.append(tuple(tokenizer.decode(each.tolist()) for each in ids))
    return found


def test_one_bad_update_is_skipped_and_counted(train, workdir, bad_where, metrics):
    bad_where(lambda state: state.step == 4)
    result = train("stop").result
    assert result["step"] == 12
    assert math.isfinite(result["loss"])
    lines = metrics(workdir, "train")
    skipped = {line["step"]: line["skipped_updates"] for line in lines}
    assert skipped == {2: 0, 4: 0, 6: 1, 8: 1, 10: 1, 12: 1}
    assert np.isfinite([line["loss"] for line in lines]).all()
    assert last_state(workdir) == [12, 12, 0, 1]


def test_many_bad_updates_stop_the_run_with_one_line(train, toy, workdir, bad_where):
    """The same command stops again with the same line."""
    bad_where(lambda state: state.step >= 4)
    file = workdir / "diverged_at_step_5.tsv"
    for _ in range(2):
        assert train("stop").complaint == (
            "training diverged: 3 updates in a row without finite loss and gradient, "
            "the first of them step 5 at data position 4; in its microbatch 1 the "
            f"gradient is first not finite in {LAYER}, going backwards; its sentences "
            f"are in {file}; to skip its data set "
            "training.on_divergence=rollback, or start anew in another workdir with "
            "a lower optimizer.learning_rate_scale"
        )
    pairs = [tuple(line.split("\t")) for line in file.read_text().splitlines()]
    assert pairs == pairs_at(workdir, 4)
    text = (toy.directory / "train.en").read_text().splitlines()
    assert {source for source, _ in pairs} <= set(text)
    assert all(target == toy.translate(source) for source, target in pairs)
    assert list(workdir.glob("diverged*")) == [file]


@pytest.mark.parametrize("first", [4, 0])
def test_a_run_skips_the_data_on_which_it_diverged(
    train, workdir, bad_where, metrics, first
):
    """From checkpoint 4: that of step 6 has two of the three bad updates in it."""
    bad_where(lambda s: (s.data_position >= first) & (s.data_position < first + 3))
    answer = train("rollback")
    assert answer.result["step"] == 12
    said = f"the first of them step {first + 1} at data position {first}; in its"
    assert said in answer.err
    assert f"resuming at step {first}, data position {first + 3}" in answer.err
    assert answer.err.count("training diverged") == 1
    assert (workdir / f"diverged_at_step_{first + 1}.tsv").exists()
    assert last_state(workdir) == [12, 15, 0, 0]
    lines = metrics(workdir, "train")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    assert {line["skipped_updates"] for line in lines} == {0}


def test_diverging_again_from_the_same_checkpoint_is_refused(train, bad_where):
    bad_where(lambda state: state.step >= 4)
    answer = train("rollback")
    assert answer.complaint == (
        "training diverged again from step 4, on other data; start anew in another "
        "workdir with a lower optimizer.learning_rate_scale"
    )
    assert answer.err.count("resuming at step 4, data position 7") == 1
