"""A run that is stopped and resumed ends in the bits of an undisturbed one."""

import json
import signal

import pytest

from jaxformer.training.log import MetricsLog, read_metrics
from tests.commands.runs import config_flags, last_state, losses, metrics, saved_steps
from tests.commands.test_architectures import write_config
from tests.training.setups import assert_same

SHORT = config_flags(  # a few updates, which cross the end of an epoch of 9
    "training", steps=12, save_every=5, eval_every=10, log_every=2, average=1
)
CORPORA = [{"name": "a", "weight": 1.5}, {"name": "b", "weight": [[0, 0.3], [7, 0.2]]}]
# Flags by what they change; the toy's run has packed rows and dropout.
CHANGES = {
    "packed": [],
    "buckets": config_flags("batches", layout="buckets", max_shapes=1),
    "two stages of a mixture": [
        *config_flags("data", corpora=json.dumps(CORPORA)),
        *config_flags("optimizer", algorithm="adafactor", weight_decay=0.1),
        *config_flags("optimizer", schedule="constant", peak_learning_rate=1e-3),
    ],
    "versions": config_flags("data", subword_sampling=0.2, versions=2),
    "moving average on a mesh": [
        *config_flags("training", ema_decay=0.9, freeze="decoder/layer_0"),
        *config_flags("mesh", data=2, fsdp=2, tensor=2),
    ],
    "recurrent": config_flags("model", attention_reading="hard"),
    "convolutional": [],
    "hybrid": [],
}
SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly
MARKS = {"packed": [], "versions": SLOW, "moving average on a mesh": SLOW}
CASES = [pytest.param(name, marks=MARKS.get(name, NIGHTLY)) for name in CHANGES]


def timeless(workdir):
    """The lines of metrics.jsonl but for what differs by the clock and by name."""
    clock = {"time", "run", "tokens_per_second"}
    lines = read_metrics(workdir)
    return [{key: line[key] for key in line.keys() - clock} for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_and_resumed_run_equals_an_undisturbed_one(
    command, toy, tmp_path, monkeypatch, name
):
    """So does its log. It stops within an epoch; the other one also writes a trace."""
    parts, undisturbed = tmp_path / "parts", tmp_path / "undisturbed"
    config, before = write_config(toy, tmp_path, name), signal.getsignal(signal.SIGTERM)
    flags = (f"--config={config}", toy.flags[1], *SHORT, *CHANGES[name])
    report = MetricsLog.train

    def stop_after_six(log, step, *args, **rates):
        report(log, step, *args, **rates)
        if step == 6:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "train", stop_after_six)
        stopped = command("train", *flags, workdir=parts)
    assert stopped.result == {"step": 7, "stopped": True}
    assert "stopped at step 7, which is saved" in stopped.err
    assert signal.getsignal(signal.SIGTERM) == before
    assert saved_steps(parts) == [5, 7]
    assert metrics(parts, "final") == []

    trace = "--config.training.trackers=profile"
    for workdir, more in ((parts, []), (undisturbed, [trace])):
        assert command("train", *flags, *more, workdir=workdir).result["step"] == 12
        assert saved_steps(workdir) == [5, 10, 12]
    assert [*undisturbed.glob("profile/**/*.trace.json.gz")]
    assert not (parts / "profile").exists()
    fields = ["params", "opt_state", "data_position", *["ema"] * ("average" in name)]
    assert_same(*(last_state(workdir, *fields) for workdir in (parts, undisturbed)))
    assert list(losses(parts)) == [2, 4, 6, 8, 10, 12]
    kinds = [line["kind"] for line in timeless(parts)]
    assert (kinds.count("eval"), kinds.count("final")) == (1, 1)
    assert timeless(parts) == timeless(undisturbed)
