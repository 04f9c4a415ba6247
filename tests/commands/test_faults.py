"""A run that is stopped or killed, whose disk is full or checkpoints are damaged."""

import resource

import pytest

pytestmark = pytest.mark.slow

LONG = "--config.training.steps=1000000"  # something else ends it


@pytest.fixture
def argv(flags, tmp_path):
    """The arguments of a run in tmp_path / "run"."""
    return (*flags, f"--workdir={tmp_path / 'run'}")


@pytest.fixture
def stopped(start, argv, newest_step, tmp_path):
    """A process that was asked to stop after a checkpoint of step 20; and its step."""
    process = start(1, *argv, LONG, devices=1)
    process.until(lambda: newest_step(tmp_path / "run") >= 20)
    result = process.stop()
    assert result == {"step": result["step"], "stopped": True}
    return process, result["step"]


@pytest.fixture
def resume(start, argv):
    """Resume the run up to a step; returns the process, which has ended."""

    def run(step):
        process = start(1, *argv, f"--config.training.steps={step}", devices=1)
        assert process.results()["step"] == step
        return process

    return run


def test_a_request_to_stop_loses_no_step(
    stopped, resume, start, argv, newest_step, losses, tmp_path
):
    """The resumed run is bit for bit what an undisturbed one is."""
    process, step = stopped
    workdir, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    assert max(losses(workdir)) == newest_step(workdir) == step
    assert "SIGTERM: stopping at the next step" in process.stderr()
    assert f"stopped at step {step:,}, which is saved" in process.stderr()
    resume(step + 5)
    end = f"--config.training.steps={step + 5}"
    start(1, *argv[:-1], f"--workdir={undisturbed}", end, devices=1).results()
    assert losses(workdir) == losses(undisturbed)


def test_a_killed_run_resumes_from_its_newest_complete_checkpoint(
    start, argv, resume, newest_step, losses, tmp_path
):
    workdir = tmp_path / "run"
    process = start(1, *argv, LONG, devices=1)
    unfinished = (workdir / "checkpoints").glob
    process.until(
        lambda: newest_step(workdir) >= 20 and [*unfinished("*.orbax-checkpoint-tmp")]
    )
    process.processes[0].kill()
    process.processes[0].wait()
    step = newest_step(workdir)
    again = resume(step + 5)
    assert f"step {step} of {step + 5}" in again.stderr()
    assert sorted(losses(workdir)) == list(range(1, step + 6))
    assert not [*unfinished("*.orbax-checkpoint-tmp")]


def test_a_full_disk_or_a_damaged_checkpoint_harms_no_other_checkpoint(
    stopped, resume, start, argv, tmp_path
):
    """A limit on the size of files is reached by the checkpoint's files first."""
    _, step = stopped
    checkpoints = tmp_path / "run" / "checkpoints"
    before = {path.name for path in checkpoints.glob("*")}
    full = start(1, *argv, LONG, devices=1)
    limits = (50_000, 50_000)  # bytes; metrics.jsonl has a fifth of that
    resource.prlimit(full.processes[0].pid, resource.RLIMIT_FSIZE, limits)
    assert full.wait(120) == [2]
    assert "Traceback" not in full.stderr()
    assert f"start again, from step {step}" in full.complaint()
    left = {path.name for path in checkpoints.glob("[0-9]*")}
    assert {name for name in left if name.isdecimal()} == before

    folder = checkpoints / str(step)
    for file in (folder / "state" / "d").glob("*"):
        file.write_bytes(file.read_bytes()[:100])
    newest = max(int(name) for name in before if int(name) < step)
    again = resume(step + 5)
    assert f"checkpoint {folder} is damaged" in again.stderr()
    assert f"step {newest} of {step + 5}" in again.stderr()


def test_a_request_before_the_first_step_loses_nothing(start, argv, tmp_path):
    process = start(1, *argv, LONG, devices=1)
    process.until(lambda: "training: " in process.stderr())
    assert process.stop()["stopped"]
    assert (tmp_path / "run" / "corpus").exists()
