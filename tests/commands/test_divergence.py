"""Training that goes wrong, as a user meets it: skipped, stopped at, or gone around.

What goes wrong is a gradient, made NaN in one layer where a test says so.
"""

import json
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
STOP = "--config.training.on_divergence=stop"
ROLLBACK = "--config.training.on_divergence=rollback"


@pytest.fixture
def bad_where(monkeypatch):
    """Give a function that spoils the updates of the states it is told of."""
    really = step.gradients

    def spoil(is_bad):
        def gradients(model, state, batch, microbatch, **kwargs):
            found = really(model, state, batch, microbatch, **kwargs)
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
def train(command, toy, tmp_path):
    """Give training of a few updates as a function of further flags."""
    return lambda *flags: command(
        *toy.flags, *TINY, f"--workdir={tmp_path / 'run'}", *flags
    )


def reports(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "train"]


def last_state(workdir):
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return {
            field: int(checkpoints.restore_parameters(None, field=field))
            for field in ("step", "data_position", "bad_steps", "skipped")
        }


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


@pytest.mark.slow
def test_one_bad_update_is_skipped_and_counted(train, tmp_path, bad_where):
    bad_where(lambda state: state.step == 4)
    result = train(STOP).result
    assert result["step"] == 12
    assert math.isfinite(result["loss"])
    lines = reports(tmp_path / "run")
    skipped = {line["step"]: line["skipped_updates"] for line in lines}
    assert skipped == {2: 0, 4: 0, 6: 1, 8: 1, 10: 1, 12: 1}
    assert np.isfinite([line["loss"] for line in lines]).all()
    assert last_state(tmp_path / "run") == {
        "step": 12, "data_position": 12, "bad_steps": 0, "skipped": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_too_many_stop_the_run_with_one_line_that_says_where(
    train, toy, tmp_path, bad_where
):
    """The checkpoint in between is of no use, and the same command says the same."""
    bad_where(lambda state: state.step >= 4)
    file = tmp_path / "run" / "diverged_at_step_5.tsv"
    for _ in range(2):
        complaint = train(STOP).complaint
        assert complaint == (
            "training diverged: 3 updates in a row without finite loss and gradient, "
            "the first of them step 5 at data position 4; in its microbatch 1 the "
            f"gradient is first not finite in {LAYER}, going backwards; its sentences "
            f"are in {file}; to skip its data set "
            "training.on_divergence=rollback, or start anew in another workdir with "
            "a lower optimizer.learning_rate_scale"
        )
    pairs = [tuple(line.split("\t")) for line in file.read_text().splitlines()]
    assert pairs == pairs_at(tmp_path / "run", 4)
    text = (toy.directory / "train.en").read_text().splitlines()
    assert {source for source, _ in pairs} <= set(text)
    assert all(target == toy.translate(source) for source, target in pairs)
    assert list((tmp_path / "run").glob("diverged*")) == [file]


@pytest.mark.slow
def test_a_run_goes_around_what_it_diverged_on(train, tmp_path, bad_where):
    """From checkpoint 4: that of step 6 has two of the three bad updates in it."""
    bad_where(lambda state: (state.data_position >= 4) & (state.data_position < 7))
    answer = train(ROLLBACK)
    assert answer.result["step"] == 12
    assert "the first of them step 5 at data position 4; in its" in answer.err
    assert "resuming at step 4, data position 7" in answer.err
    assert answer.err.count("training diverged") == 1
    assert (tmp_path / "run" / "diverged_at_step_5.tsv").exists()
    assert last_state(tmp_path / "run") == {
        "step": 12, "data_position": 15, "bad_steps": 0, "skipped": 0,
    }  # fmt: skip
    lines = reports(tmp_path / "run")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    assert {line["skipped_updates"] for line in lines} == {0}


@pytest.mark.slow
def test_a_run_that_diverges_at_once_begins_again_further_on(
    train, tmp_path, bad_where
):
    bad_where(lambda state: state.data_position < 3)
    answer = train(ROLLBACK)
    assert answer.result["step"] == 12
    assert "resuming at step 0, data position 3" in answer.err
    assert last_state(tmp_path / "run")["data_position"] == 15


@pytest.mark.slow
def test_diverging_again_from_the_same_checkpoint_is_refused(
    train, tmp_path, bad_where
):
    """Other data did not help, so it is not the data."""
    bad_where(lambda state: state.step >= 4)
    answer = train(ROLLBACK)
    assert answer.complaint == (
        "training diverged again from step 4, on other data; start anew in another "
        "workdir with a lower optimizer.learning_rate_scale"
    )
    assert answer.err.count("resuming at step 4, data position 7") == 1
