"""jaxformer train: what it reports, saves and resumes."""

import re
import signal
import sys

import jax
import numpy as np
import pytest

from jaxformer.evaluation.evaluator import Evaluator
from jaxformer.runs import job, validation
from jaxformer.runs.run import open_run
from jaxformer.training import memory, sharding
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import encode
from tests.commands.runs import config_flags, last_state, losses, metrics, saved_steps
from tests.training.saved import truncate
from tests.training.setups import assert_same


def steps_of(workdir, kind):
    return [line["step"] for line in metrics(workdir, kind)]


def test_the_toy_language_is_learnt_and_the_result_is_one_line(trained):
    result, workdir = trained.answer.result, trained.workdir
    assert list(result) == [
        "step", "loss", "nll", "ppl", "bleu", "signature", "direction",
        "tokens_per_second",
    ]  # fmt: skip
    assert (result["step"], result["direction"]) == (100, "en-de")
    assert result["ppl"] == pytest.approx(np.exp(result["nll"]))
    assert result["tokens_per_second"] > 0
    assert result["bleu"] > 60
    loss = losses(workdir)
    assert list(loss) == [20, 40, 60, 80, 100]
    assert loss[100] < loss[20] / 4
    assert steps_of(workdir, "eval") == [50, 100]
    assert list((workdir / "tensorboard").iterdir())
    # The newest three; one of those that were evaluated is the best.
    assert saved_steps(workdir) == [50, 75, 100]


def test_each_evaluation_is_logged_once_with_samples(trained, toy):
    err = trained.answer.err
    assert "is worse than" not in err  # a uniform guess
    scores = r"nll \d+\.\d{4}, ppl \d+\.\d\d, accuracy \d+\.\d %, BLEU \d+\.\d\d en-de "
    told = re.findall(rf"^step (\d+), validation: {scores}\(nrefs:1\|case:m", err, re.M)
    assert told == ["50", "100", "100"]  # the last: averaged
    assert err.count("nrefs:1") == 3 + 7  # the last one under all 7 scorers
    sample = r"^sentence (\d+)\n  source    (.*)\n  reference (.*)\n  output    (.*)$"
    samples = re.findall(sample, err, re.M)
    assert len(samples) == 3 * 3
    for number, source, reference, _ in samples:
        assert source == toy.dev[int(number) - 1]
        assert reference == toy.translate(source)


def test_a_stop_in_the_save_of_the_first_update_loses_nothing(
    command, toy, tmp_path, monkeypatch
):
    save = Checkpoints.save

    def stop_and_save(*args, **options):
        signal.raise_signal(signal.SIGTERM)
        save(*args, **options)

    monkeypatch.setattr(Checkpoints, "save", stop_and_save)
    short = config_flags("training", steps=12, save_every=1, eval_every=10)
    stopped = command("train", *toy.flags, *short, workdir=tmp_path)
    assert stopped.result == {"step": 2, "stopped": True}
    assert saved_steps(tmp_path) == [1, 2]


def test_a_finished_run_only_repeats_a_lost_evaluation(
    command, trained, own_run, toy_is_gone, monkeypatch
):
    """The line of the scores is torn by a crash after the step was saved."""
    first, last = metrics(own_run, "eval")
    reports = metrics(own_run, "train")
    text = "".join(map(encode, [*reports, first, last]))
    (own_run / "metrics.jsonl").write_text(text[:-30])
    answer = command("train", workdir=own_run)  # neither config nor text
    assert "ended, and is only scored; to continue, raise training.steps" in answer.err
    assert f"to translate:\n  jaxformer translate {own_run}\n" in answer.err
    module = [".venv/bin/python", "-m", "jaxformer.main"]
    monkeypatch.setattr(sys, "orig_argv", [*module, "train", str(own_run)])
    again = command("train", workdir=own_run).err
    assert f"  {' '.join(module)} translate {own_run}\n" in again
    assert not jax.config.read("jax_cpu_enable_async_dispatch")
    assert answer.result == trained.answer.result | {"tokens_per_second": 0}
    assert saved_steps(own_run) == saved_steps(trained.workdir)
    fields = "params", "opt_state"
    assert_same(*(last_state(run, *fields) for run in (own_run, trained.workdir)))
    assert metrics(own_run, "train") == reports
    assert steps_of(own_run, "final") == [100]
    kept, repeated = metrics(own_run, "eval")
    assert kept == first
    assert repeated.pop("time") > last.pop("time")
    for key in ("loss", "nll", "ppl"):
        assert repeated.pop(key) == pytest.approx(last.pop(key), rel=1e-5)
    assert repeated == last


def test_other_values_of_the_updates_are_told_and_recorded_if_any_is_left(
    command, own_run
):
    changes = "--config.model.dropout=0.3", "--config.optimizer.warmup_steps=9"
    beam = "--config.decoding.beam_size=2"
    before = open_run(own_run).config
    said = "changed since the last start: model.dropout from"
    answer = command("train", *changes, beam, workdir=own_run)
    assert "not recorded, as no update is left: model.dropout from" in answer.err
    assert said not in answer.err
    after = open_run(own_run).config
    assert (after.model, after.optimizer) == (before.model, before.optimizer)
    assert after.decoding.beam_size == 2
    more = "--config.training.steps=101"
    answer = command("train", *changes, more, workdir=own_run)
    assert f"{said} {before.model.dropout} to 0.3, " in answer.err
    assert open_run(own_run).config.model.dropout == 0.3


def test_a_terminal_gets_no_json(command, own_run):
    answer = command("train", workdir=own_run, is_terminal=True)
    assert (answer.code, answer.out) == (0, b"")
    prepared = command("prepare", workdir=own_run, is_terminal=True)
    assert re.fullmatch(rb"(\w+: .+\n)+", prepared.out)
    large = "--config.training.tokens_per_microbatch=10000"
    assert (
        "is far more than an update has"
        in command("train", large, workdir=own_run).complaint
    )


def test_an_update_that_does_not_fit_is_refused_before_the_first_alone(
    command, own_run, toy, tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "require_memory", lambda _: None)
    monkeypatch.setattr(memory, "device_budget", lambda _: 2**20)
    more = config_flags("training", steps=101)
    refused = command("train", *toy.flags, *more, workdir=tmp_path).complaint
    assert re.match(r"an update with \d+ rows of 32 source and 32 target", refused)
    assert command("train", *more, workdir=own_run).result["step"] == 101


def test_a_finished_run_whose_result_cannot_be_evaluated_loses_nothing(
    command, own_run
):
    """An older checkpoint, of which the result is an average, is damaged."""
    before = (own_run / "metrics.jsonl").read_bytes()
    truncate(own_run / "checkpoints" / "75")
    assert "75 is damaged" in command("train", workdir=own_run).complaint
    assert (own_run / "metrics.jsonl").read_bytes() == before


# What is called when a signal arrives, the number of the call, and the step saved.
STOPS = {
    "before the first update": (job, "make_training_setup", 1, 100),
    "at the first update": (sharding, "put_batch", 1, 100),
    "at a later update": (sharding, "put_batch", 2, 102),
    "at an evaluation": (Evaluator, "__call__", 1, 102),
    "at the result": (validation, "load_parameters", 1, 103),
}


@pytest.mark.parametrize(("owner", "name", "number", "step"), STOPS.values(), ids=STOPS)
def test_a_stop_makes_no_update_while_all_are_saved(
    command, own_run, monkeypatch, owner, name, number, step
):
    """Otherwise the update in progress is made and saved."""
    original, begun = getattr(owner, name), []

    def call(*given, **flags):
        begun.append(name)
        if len(begun) == number:
            signal.raise_signal(signal.SIGTERM)
        return original(*given, **flags)

    monkeypatch.setattr(owner, name, call)
    every = {"eval_every": 1020} if name == "load_parameters" else {"eval_every": 102}
    flags = config_flags("training", steps=103, save_every=51, **every)
    result = command("train", *flags, workdir=own_run).result
    assert result == {"step": step, "stopped": True}


def test_a_stop_names_no_damaged_checkpoint(command, own_run, monkeypatch):
    truncate(own_run / "checkpoints" / "100")
    monkeypatch.setattr(
        sharding, "put_batch", lambda *_: signal.raise_signal(signal.SIGTERM)
    )
    stopped = command("train", *config_flags("training", steps=103), workdir=own_run)
    assert stopped.result == {"step": 75, "stopped": True}
    assert "stopped at step 75, which is saved" in stopped.err
