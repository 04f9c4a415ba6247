"""What may happen to a run: stopped, killed, its disk full, its checkpoints damaged."""

import resource
import signal

import pytest

pytestmark = pytest.mark.slow

LONG = "--config.training.steps=1000000"  # something else ends it


@pytest.fixture
def running(start, flags, tmp_path):
    """A process that trains, with some checkpoints; and how it was started."""
    argv = (*flags, f"--workdir={tmp_path / 'run'}")
    process = start(1, *argv, LONG, devices=1)
    return process, argv, tmp_path / "run"


@pytest.fixture
def stop_after_twenty(newest_step):
    """Ask a run to stop when it has a checkpoint of step 20; gives its last step."""

    def stop(process, workdir):
        process.until(lambda: newest_step(workdir) >= 20)
        process.processes[0].send_signal(signal.SIGTERM)
        return process.results()["step"]

    return stop


def test_a_request_to_stop_loses_no_step(running, start, newest_step, losses, tmp_path):
    """And what goes on from there is bit for bit what an undisturbed run does."""
    process, argv, workdir = running
    process.until(lambda: newest_step(workdir) >= 20)
    process.processes[0].send_signal(signal.SIGTERM)
    stopped = process.results()
    step = stopped["step"]
    assert stopped == {"step": step, "stopped": True}
    assert max(losses(workdir)) == newest_step(workdir) == step
    assert "SIGTERM: stopping at the next step" in process.stderr(0)
    assert f"stopped at step {step:,}, which is saved" in process.stderr(0)

    end = f"--config.training.steps={step + 5}"
    start(1, *argv, end, devices=1).results()
    whole = tmp_path / "whole"
    start(1, *argv[:-1], f"--workdir={whole}", end, devices=1).results()
    assert losses(workdir) == losses(whole)


def test_a_request_before_the_first_step_loses_nothing(running):
    process, _, workdir = running
    process.until(lambda: "training: " in process.stderr(0))
    process.processes[0].send_signal(signal.SIGTERM)
    assert process.results()["stopped"]
    assert (workdir / "corpus").exists()


def test_a_killed_run_goes_on_from_its_newest_whole_checkpoint(
    running, start, newest_step, losses
):
    process, argv, workdir = running
    unfinished = (workdir / "checkpoints").glob
    process.until(
        lambda: newest_step(workdir) >= 20 and [*unfinished("*.orbax-checkpoint-tmp")]
    )
    process.processes[0].kill()
    process.processes[0].wait()
    step = newest_step(workdir)
    again = start(1, *argv, f"--config.training.steps={step + 5}", devices=1)
    assert again.results()["step"] == step + 5
    assert f"step {step} of {step + 5}" in again.stderr(0)
    assert sorted(losses(workdir)) == list(range(1, step + 6))
    assert not [*unfinished("*.orbax-checkpoint-tmp")]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    running, start, stop_after_twenty
):
    process, argv, workdir = running
    step = stop_after_twenty(process, workdir)
    folder = workdir / "checkpoints" / str(step)
    for file in (folder / "state" / "d").glob("*"):
        file.write_bytes(file.read_bytes()[:100])
    before = max(
        int(path.name)
        for path in (workdir / "checkpoints").glob("[0-9]*")
        if int(path.name) < step
    )
    again = start(1, *argv, f"--config.training.steps={step + 5}", devices=1)
    assert again.results()["step"] == step + 5
    assert f"checkpoint {folder} is damaged" in again.stderr(0)
    assert f"step {before} of {step + 5}" in again.stderr(0)


def test_a_full_disk_is_one_sentence_and_harms_no_checkpoint(
    running, start, stop_after_twenty
):
    """A limit on the size of files: the checkpoint's are the first to be too large."""
    process, argv, workdir = running
    step = stop_after_twenty(process, workdir)
    checkpoints = {path.name for path in (workdir / "checkpoints").glob("*")}
    full = start(1, *argv, LONG, devices=1)
    limits = (50_000, 50_000)  # bytes; metrics.jsonl has a fifth of that
    resource.prlimit(full.processes[0].pid, resource.RLIMIT_FSIZE, limits)
    assert full.wait(120) == [2]
    assert "Traceback" not in full.stderr(0)
    assert f"start again, from step {step}" in full.complaint(0)
    left = {path.name for path in (workdir / "checkpoints").glob("[0-9]*")}
    assert {name for name in left if name.isdecimal()} == checkpoints
    again = start(1, *argv, f"--config.training.steps={step + 5}", devices=1)
    assert again.results()["step"] == step + 5
