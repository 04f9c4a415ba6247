"""--mode=train: what it reports, resumes, keeps and refuses."""

import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog

SHORT = (  # a few updates, which cross the end of an epoch of 9
    "--config.training.steps=12",
    "--config.training.save_every=5",
    "--config.training.eval_every=10",
    "--config.training.log_every=2",
    "--config.training.average=1",
)


def saved_steps(workdir):
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return checkpoints.steps()


def last_state(workdir, field):
    """A field of the newest checkpoint, as numpy arrays."""
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return checkpoints.restore_parameters(None, field=field)


def are_equal(ours, theirs):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, ours, theirs)))


def files(folder):
    """Everything in a folder, with content."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in found}


def test_the_toy_language_is_learnt_and_the_result_is_one_line(trained, metrics):
    result = trained.answer.result
    assert list(result) == [
        "step", "loss", "nll", "ppl", "bleu", "signature", "direction",
        "tokens_per_second", "seconds",
    ]  # fmt: skip
    assert (result["step"], result["direction"]) == (100, "en-de")
    assert "tok:13a" in result["signature"]
    assert result["ppl"] == pytest.approx(np.exp(result["nll"]))
    assert result["tokens_per_second"] > 0
    assert result["bleu"] > 60
    reports = metrics(trained.workdir, "train")
    assert [line["step"] for line in reports] == [20, 40, 60, 80, 100]
    assert reports[-1]["loss"] < reports[0]["loss"] / 4
    evaluations = metrics(trained.workdir, "eval")
    assert [line["step"] for line in evaluations] == [50, 100]
    for line in evaluations:
        assert {"nll", "ppl", "accuracy", "bleu", "signature", "direction"} <= set(line)
    assert list((trained.workdir / "tensorboard").iterdir())
    # The newest three; one of those that were evaluated is the best.
    assert saved_steps(trained.workdir) == [50, 75, 100]


def test_each_evaluation_is_logged_once_with_samples(trained, toy):
    err = trained.answer.err
    told = re.findall(r"^step (\d+), validation: (.*)$", err, re.M)
    assert [step for step, _ in told] == ["50", "100", "100"]  # the last: averaged
    for _, scores in told:
        assert re.search(r"BLEU \d+\.\d\d en-de \(nrefs:1\|case:mixed\|", scores)
        assert re.search(r"^nll \d+\.\d{4}, ppl \d+\.\d\d, accuracy \d+\.\d %", scores)
    assert err.count("nrefs:1") == len(told) + 7  # the last one under all 7 scorers
    sample = r"^sentence (\d+)\n  source    (.*)\n  reference (.*)\n  output    (.*)$"
    samples = re.findall(sample, err, re.M)
    assert len(samples) == 3 * 3
    for number, source, reference, _ in samples:
        assert source == toy.dev[int(number) - 1]
        assert reference == toy.translate(source)


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(("packed", "python"), id="packed"),
        pytest.param(("buckets", "tf.data"), id="buckets", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(
    batches, command, toy, tmp_path, monkeypatch, metrics
):
    """Bit for bit, in the middle of an epoch, dropout on."""
    layout, executor = batches
    flags = (
        *toy.flags, *SHORT, f"--config.batches.layout={layout}",
        f"--config.batches.executor={executor}", "--config.batches.max_shapes=2",
    )  # fmt: skip
    parts, undisturbed = tmp_path / "parts", tmp_path / "undisturbed"
    before = signal.getsignal(signal.SIGTERM)
    report = MetricsLog.train

    def stop_after_four(log, step, *args, **rates):
        report(log, step, *args, **rates)
        if step == 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "train", stop_after_four)
        stopped = command(*flags, f"--workdir={parts}")
    assert stopped.result == {"step": 5, "stopped": True}
    assert "stopped at step 5, which is saved" in stopped.err
    assert signal.getsignal(signal.SIGTERM) == before
    assert saved_steps(parts) == [5]
    assert metrics(parts, "final") == []

    for workdir in (parts, undisturbed):
        assert command(*flags, f"--workdir={workdir}").result["step"] == 12
        assert saved_steps(workdir) == [5, 10, 12]
        assert [line["step"] for line in metrics(workdir, "eval")] == [10]
        assert [line["step"] for line in metrics(workdir, "final")] == [12]
    for field in ("params", "opt_state"):
        assert are_equal(last_state(parts, field), last_state(undisturbed, field))
    expected, resumed = metrics(undisturbed, "train"), metrics(parts, "train")
    assert [line["step"] for line in expected] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in resumed] == [2, 4, 5, 6, 8, 10, 12]
    assert resumed[-1]["loss"] == expected[-1]["loss"]


def test_a_finished_run_only_repeats_a_lost_evaluation(
    command, trained, own_run, toy_is_gone, metrics
):
    """The line of the scores is torn by a crash after the step was saved."""
    first, last = metrics(own_run, "eval")
    reports = metrics(own_run, "train")
    file = own_run / "metrics.jsonl"
    text = "".join(f"{json.dumps(line)}\n" for line in [*reports, first])
    file.write_text(text + json.dumps(last)[:-30])
    steps, before = saved_steps(own_run), last_state(own_run, "params")
    again = command(f"--workdir={own_run}").result  # neither config nor text
    for key in ("step", "loss", "nll", "bleu", "signature", "direction"):
        assert again[key] == trained.answer.result[key]
    assert again["tokens_per_second"] == 0
    assert saved_steps(own_run) == steps
    assert are_equal(last_state(own_run, "params"), before)
    assert metrics(own_run, "train") == reports
    kept, repeated = metrics(own_run, "eval")
    assert kept == first
    assert repeated.pop("time") > last.pop("time")
    for key in ("loss", "nll", "ppl"):
        assert repeated.pop(key) == pytest.approx(last.pop(key), rel=1e-5)
    assert repeated == last


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.d_ff=32", "model.d_ff=64, and this config says 32"),
        ("data.vocab_size=90", "data.vocab_size=96, and this config says 90"),
        ("training.steps=90", "run of 100 steps, and the config asks for 90"),
    ],
)
def test_another_run_in_an_old_workdir_is_refused(
    command, toy, own_run, override, said
):
    before = files(own_run)
    flags = (*toy.flags, f"--workdir={own_run}", f"--config.{override}")
    assert said in command(*flags).complaint
    assert files(own_run) == before


def test_a_foreign_tokenizer_is_refused(command, toy, own_run):
    other, model = own_run.parent / "other", own_run / "tokenizer.model"
    smaller = ("--mode=prepare", "--config.data.vocab_size=60")
    result = command(*toy.flags, f"--workdir={other}", *smaller).result
    assert result["vocab_size"] == 60
    shutil.copy(other / "tokenizer.model", model)
    for mode in ("train", "translate", "evaluate", "score"):
        answer = command(f"--mode={mode}", f"--workdir={own_run}", stdin=b"bo\n")
        assert str(model) in answer.complaint


def test_a_workdir_without_a_run_or_that_is_a_file_is_refused(command, toy, tmp_path):
    assert "no run in" in command(f"--workdir={tmp_path / 'new'}").complaint
    assert not (tmp_path / "new").exists()
    file = tmp_path / "file"
    file.write_text("mine")
    assert str(file) in command(*toy.flags, f"--workdir={file}").complaint
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("dev.de", b"SU\nRI\n", ["12", "2", "dev.en", "dev.de"]),
        ("train.en", b"bo\n\xff\n", ["train.en", "line 2", "UTF-8"]),
        ("train.de", b"", ["train.de", "empty"]),
    ],
)
def test_unusable_text_leaves_nothing_behind(
    command, toy, tmp_path, name, content, said
):
    text, workdir = tmp_path / "text", tmp_path / "run"
    shutil.copytree(toy.directory, text)
    (text / name).write_bytes(content)
    flags = (f"--config.data.directory={text}", f"--workdir={workdir}")
    complaint = command(toy.flags[0], *flags).complaint
    for part in said:
        assert part in complaint
    assert files(workdir) == {}


def test_a_mesh_that_does_not_fit_may_be_corrected(command, toy, own_run):
    shutil.rmtree(own_run / "checkpoints")
    flags = (*toy.flags, f"--workdir={own_run}")
    assert "mesh.data=3" in command(*flags, "--config.mesh.data=3").complaint
    assert command(*flags, "--mode=prepare").result["direction"] == "en-de"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config.model.d_modle = 3", "model.d_modle; did you mean model.d_model?"),
        ("del config.training.steps", "lacks the key training.steps"),
        ("config.optimizer.warmup_steps = 0", "warmup_steps"),
        ("config.batches.row_length = 800", "tokens_per_microbatch"),
    ],
)
def test_a_wrong_config_file_is_refused_before_the_work(
    command, toy, tmp_path, line, said
):
    config, workdir = tmp_path / "wrong.py", tmp_path / "run"
    body, end, _ = toy.config.read_text().partition("    return config")
    config.write_text(f"{body}    {line}\n{end}\n")
    answer = command(f"--config={config}", toy.flags[1], f"--workdir={workdir}")
    assert said in answer.complaint
    assert answer.err.count("\n") == 1
    assert not workdir.exists()
