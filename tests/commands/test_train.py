"""--mode=train as a user meets it: what it says, resumes, keeps and refuses."""

import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog

SHORT = (  # a few updates, that cross the end of an epoch of 9
    "--config.training.save_every=5",
    "--config.training.eval_every=10",
    "--config.training.log_every=2",
    "--config.training.average=1",
)


def metrics(workdir, kind):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def saved_steps(workdir):
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return checkpoints.steps()


def last_state(workdir, field):
    """A field of the newest checkpoint, as numpy arrays."""
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return checkpoints.restore_parameters(None, field=field)


def files(folder):
    """Everything in a folder, with content."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in found}


def test_result_is_one_line_of_json_with_the_promised_keys(trained):
    result = trained.answer.result
    assert list(result) == [
        "step", "loss", "nll", "ppl", "bleu", "signature", "direction",
        "tokens_per_second", "seconds",
    ]  # fmt: skip
    assert result["step"] == 100
    assert result["direction"] == "en-de"
    assert "tok:13a" in result["signature"]
    assert result["ppl"] == pytest.approx(np.exp(result["nll"]))
    assert result["tokens_per_second"] > 0


def test_the_toy_language_is_learnt(trained):
    losses = [line["loss"] for line in metrics(trained.workdir, "train")]
    assert losses[-1] < losses[0] / 4
    assert trained.answer.result["bleu"] > 60


def test_every_report_and_evaluation_is_in_the_metrics(trained):
    steps = [line["step"] for line in metrics(trained.workdir, "train")]
    assert steps == [20, 40, 60, 80, 100]
    evaluations = metrics(trained.workdir, "eval")
    assert [line["step"] for line in evaluations] == [50, 100]
    for line in evaluations:
        assert {"nll", "ppl", "accuracy", "bleu", "signature", "direction"} <= set(line)
    assert list((trained.workdir / "tensorboard").iterdir())


def test_the_newest_checkpoints_and_the_best_are_kept(trained):
    steps = saved_steps(trained.workdir)
    assert steps == [50, 75, 100]  # of those that were evaluated, one is the best


def test_an_evaluation_is_told_once_and_readably(trained, toy):
    told = re.findall(r"^step (\d+), validation: (.*)$", trained.answer.err, re.M)
    assert [step for step, _ in told] == ["50", "100", "100"]  # the last: averaged
    for _, scores in told:
        assert re.search(r"BLEU \d+\.\d\d en-de \(nrefs:1\|case:mixed\|", scores)
        assert re.search(r"^nll \d+\.\d{4}, ppl \d+\.\d\d, accuracy \d+\.\d %", scores)
    every = 7  # scorers of the last one, besides
    assert trained.answer.err.count("nrefs:1") == len(told) + every


def test_samples_show_source_reference_and_output(trained, toy):
    samples = re.findall(
        r"^sentence (\d+)\n  source    (.*)\n  reference (.*)\n  output    (.*)$",
        trained.answer.err,
        re.M,
    )
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
def test_a_resumed_run_equals_an_uninterrupted_one(batches, command, toy, tmp_path):
    """Bit for bit, in the middle of an epoch, dropout on."""
    layout, executor = batches
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    for workdir, steps in ((parts, 5), (parts, 12), (whole, 12)):
        result = command(
            *toy.flags, *SHORT, f"--workdir={workdir}",
            f"--config.training.steps={steps}", "--config.model.dropout=0.1",
            f"--config.batches.layout={layout}",
            f"--config.batches.executor={executor}", "--config.batches.max_shapes=2",
        ).result  # fmt: skip
        assert result["step"] == steps
    for field in ("params", "opt_state"):
        equal = jax.tree.map(
            np.array_equal, last_state(parts, field), last_state(whole, field)
        )
        assert all(jax.tree.leaves(equal))
    assert [line["step"] for line in metrics(whole, "train")] == [2, 4, 6, 8, 10, 12]
    resumed = metrics(parts, "train")
    assert [line["step"] for line in resumed] == [2, 4, 5, 6, 8, 10, 12]
    assert resumed[-1]["loss"] == metrics(whole, "train")[-1]["loss"]
    assert [line["step"] for line in metrics(parts, "eval")] == [10]
    assert [line["step"] for line in metrics(parts, "final")] == [5, 12]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_says_where_and_goes_on_from_there(
    command, toy, tmp_path, monkeypatch, number
):
    train = (
        *toy.flags, *SHORT, f"--workdir={tmp_path / 'run'}",
        "--config.training.steps=12",
    )  # fmt: skip
    before = signal.getsignal(number)
    report = MetricsLog.train

    def stop_after_four(log, step, *args, **rates):
        report(log, step, *args, **rates)
        if step == 4:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "train", stop_after_four)
        stopped = command(*train)
    assert stopped.result == {"step": 5, "stopped": True}
    assert "stopped at step 5, which is saved" in stopped.err
    assert signal.getsignal(number) == before
    assert saved_steps(tmp_path / "run") == [5]
    assert metrics(tmp_path / "run", "final") == []
    assert command(*train).result["step"] == 12
    assert saved_steps(tmp_path / "run") == [5, 10, 12]
    reports = [line["step"] for line in metrics(tmp_path / "run", "train")]
    assert reports == [2, 4, 5, 6, 8, 10, 12]


def test_an_evaluation_that_was_cut_short_is_made_up_for(command, toy, own_run):
    """A crash after the step was saved: the line of its scores is torn or not there."""
    first, last = metrics(own_run, "eval")
    file = own_run / "metrics.jsonl"
    kept = [line for line in file.read_text().splitlines() if '"kind": "train"' in line]
    text = "".join(f"{line}\n" for line in [*kept, json.dumps(first)])
    file.write_text(text + json.dumps(last)[:-30])
    assert command(*toy.flags, f"--workdir={own_run}").result["step"] == 100
    again, made_up = metrics(own_run, "eval")
    assert again == first
    assert made_up.pop("time") > last.pop("time")
    for key in ("loss", "nll", "ppl"):
        assert made_up.pop(key) == pytest.approx(last.pop(key), rel=1e-5)
    assert made_up == last


def test_a_finished_run_is_not_trained_again(command, toy, trained, own_run):
    steps, before = saved_steps(own_run), last_state(own_run, "params")
    reports = metrics(own_run, "train"), metrics(own_run, "eval")
    again = command(*toy.flags, f"--workdir={own_run}").result
    for key in ("step", "loss", "nll", "bleu", "signature", "direction"):
        assert again[key] == trained.answer.result[key]
    assert again["tokens_per_second"] == 0
    assert saved_steps(own_run) == steps
    assert (metrics(own_run, "train"), metrics(own_run, "eval")) == reports
    equal = jax.tree.map(np.array_equal, last_state(own_run, "params"), before)
    assert all(jax.tree.leaves(equal))


def test_a_run_goes_on_without_its_config_and_its_text(
    command, trained, own_run, toy_is_gone
):
    assert command(f"--workdir={own_run}").result["step"] == 100


def test_fewer_steps_than_were_made_are_refused(command, toy, own_run):
    before = files(own_run)
    complaint = command(
        *toy.flags, f"--workdir={own_run}", "--config.training.steps=90"
    ).complaint
    assert "run of 100 steps" in complaint
    assert "asks for 90" in complaint
    assert files(own_run) == before


@pytest.mark.parametrize(
    ("override", "key", "was", "now"),
    [
        ("model.d_ff=32", "model.d_ff", "64", "32"),
        ("data.vocab_size=90", "data.vocab_size", "96", "90"),
        ("optimizer.warmup_steps=7", "optimizer.warmup_steps", "40", "7"),
        ("training.seed=1", "training.seed", "0", "1"),
    ],
)
def test_another_run_in_an_old_workdir_is_refused(
    command, toy, trained, override, key, was, now
):
    complaint = command(
        *toy.flags, f"--workdir={trained.workdir}", f"--config.{override}"
    ).complaint
    assert f"{key}={was}" in complaint
    assert re.search(rf"says {now}\b", complaint)


def test_a_foreign_tokenizer_is_refused(command, toy, own_run):
    other, model = own_run.parent / "other", own_run / "tokenizer.model"
    smaller = "--config.data.vocab_size=60"
    assert (
        command(*toy.flags, f"--workdir={other}", "--mode=prepare", smaller).result[
            "vocab_size"
        ]
        == 60
    )
    shutil.copy(other / "tokenizer.model", model)
    assert str(model) in command(*toy.flags, f"--workdir={own_run}").complaint
    for mode in ("translate", "evaluate", "score"):
        answer = command(f"--mode={mode}", f"--workdir={own_run}", stdin=b"bo\n")
        assert str(model) in answer.complaint


def test_no_config_and_no_run_is_one_sentence(command, tmp_path):
    complaint = command(f"--workdir={tmp_path / 'new'}").complaint
    assert "no run in" in complaint
    assert not (tmp_path / "new").exists()


def test_a_workdir_that_is_a_file_is_refused(command, toy, tmp_path):
    (tmp_path / "file").write_text("mine")
    complaint = command(*toy.flags, f"--workdir={tmp_path / 'file'}").complaint
    assert str(tmp_path / "file") in complaint
    assert (tmp_path / "file").read_text() == "mine"


def test_a_workdir_that_cannot_be_written_is_refused(
    command, toy, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    complaint = command(*toy.flags, f"--workdir={tmp_path}").complaint
    assert f"{tmp_path} is not writable" in complaint
    assert not list(tmp_path.iterdir())


def damaged(toy, folder, name, lines):
    """Copy the toy text with one file replaced."""
    shutil.copytree(toy.directory, folder)
    (folder / name).write_bytes(lines)
    return f"--config.data.directory={folder}"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("dev.de", b"SU\nRI\n", ["12", "2", "dev.en", "dev.de"]),
        ("train.en", b"bo\n\xff\n", ["train.en", "line 2", "UTF-8"]),
        ("train.de", b"", ["train.de", "empty"]),
    ],
)
def test_text_that_cannot_be_used_leaves_nothing_behind(
    command, toy, tmp_path, name, content, said
):
    text, workdir = tmp_path / "text", tmp_path / "run"
    answer = command(
        *toy.flags, damaged(toy, text, name, content), f"--workdir={workdir}"
    )
    for part in said:
        assert part in answer.complaint
    assert files(workdir) == {}


@pytest.mark.parametrize(
    ("override", "said"),
    [("batches.executor=ptyhon", "'ptyhon'"), ("mesh.data=3", "mesh.data=3")],
)
def test_what_this_machine_cannot_do_may_be_put_right(
    command, toy, own_run, override, said
):
    shutil.rmtree(own_run / "checkpoints")
    answer = command(*toy.flags, f"--workdir={own_run}", f"--config.{override}")
    assert said in answer.complaint
    again = command(*toy.flags, f"--workdir={own_run}", "--mode=prepare")
    assert again.result["direction"] == "en-de"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config.model.d_modle = 3", "model.d_modle; did you mean model.d_model?"),
        ("config.optimizer.beta3 = 3", "optimizer.beta3"),
        ("config.mesh.dta = 3", "mesh.dta"),
        (
            "config.batches.layuot = 'packed'",
            "batches.layuot; did you mean batches.layout?",
        ),
        ("config.decoding.beam = 3", "decoding.beam"),
        ("del config.training.steps", "lacks the key training.steps"),
        ("del config.mesh", "lacks the section mesh"),
        ("config.modle = {}", "unknown section modle; did you mean model?"),
        ("config.training.eval_every = 30", "eval_every is 30; it must be a multiple"),
        ("config.training.average = 9", "training.average is 9"),
        ("config.model.dtype = 'float16'", "float16"),
        ("config.batches.layout = 'bucket'", "'bucket'"),
        ("config.optimizer.warmup_steps = 0", "warmup_steps"),
        ("config.training.save_every = 0", "training.save_every is 0"),
        ("config.model.num_heads = 0", "model.num_heads"),
        ("config.decoding.beam_size = 0", "decoding.beam_size is 0"),
        ("config.batches.row_length = 800", "tokens_per_microbatch"),
        ("del config.batches.row_multiple", "lacks the key batches.row_multiple"),
        ("config.training.max_bad_steps = 0", "training.max_bad_steps is 0"),
        ("config.training.on_divergence = 'go'", "training.on_divergence is 'go'"),
        ("del config.batches.executor", "batches.executor"),
    ],
)
def test_a_wrong_config_file_is_refused_before_the_work(
    command, toy, tmp_path, line, said
):
    config, workdir = tmp_path / "wrong.py", tmp_path / "run"
    body, end, _ = toy.config.read_text().partition("    return config")
    config.write_text(f"{body}    {line}\n{end}\n")
    answer = command(
        f"--config={config}", f"--config.data.directory={toy.directory}",
        f"--workdir={workdir}",
    )  # fmt: skip
    assert said in answer.complaint
    assert answer.err.count("\n") == 1
    assert not workdir.exists()
