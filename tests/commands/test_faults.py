"""A run that is killed, whose disk is full or whose checkpoints are damaged."""

import resource
import shutil

import pytest

from jaxformer.runs.run import open_run, read_parameters
from jaxformer.training import checkpoint_files
from tests.commands.runs import losses, newest_step, saved_steps
from tests.training.setups import assert_same

LONG = 1_000_000  # updates; something else ends the run


@pytest.mark.slow
def test_a_run_survives_a_kill_a_full_disk_and_a_damaged_checkpoint(
    start, flags, tmp_path
):
    """More kills, and stops, are in tests/benchmarks/test_faults.py."""
    workdir = tmp_path / "run"
    checkpoints = workdir / "checkpoints"

    def run(steps):
        end = f"--config.training.steps={steps}"
        return start(1, *flags, end, f"--workdir={workdir}")

    killed = run(LONG)
    killed.until(lambda: newest_step(workdir) >= 10)
    killed.kill()
    step = newest_step(workdir)

    # Of all files, those of checkpoints reach a limit on size first. A checkpoint whose
    # files happen to be small is saved; the next larger one is not.
    before = saved_steps(workdir)
    full = run(LONG)
    full.until(lambda: newest_step(workdir) > step)
    assert f"step {step} of" in full.stderr()
    limits = (100_000, 100_000)  # bytes; metrics.jsonl has a fifth of that
    resource.prlimit(full.processes[0].pid, resource.RLIMIT_FSIZE, limits)
    assert full.wait(120) == [2]
    assert "Traceback" not in full.stderr()
    saved = saved_steps(workdir)
    fitting = range(step // 10 * 10 + 10, saved[-1] + 1, 10)
    assert saved == [*before, *fitting][-3:]  # `keep`
    step = saved[-1]
    assert f"start again, from step {step}" in full.complaint()

    for file in (checkpoints / str(step) / "state" / "d").glob("*"):
        file.write_bytes(file.read_bytes()[:100])
    again = run(step + 5)
    assert again.result()["step"] == step + 5
    assert f"checkpoint {checkpoints / str(step)} is damaged" in again.stderr()
    assert f"step {saved[-2]} of {step + 5}" in again.stderr()
    assert sorted(losses(workdir)) == list(range(1, step + 6))


def test_a_damaged_checkpoint_is_refused_unless_another_is_asked_for(command, own_run):
    (own_run / "checkpoints" / "100" / "state" / "_METADATA").unlink()
    for flags in (
        "translate", "translate --checkpoint=latest", "translate --checkpoint=best",
        "translate --checkpoint=average:3",
        f"export --format=huggingface --output={own_run / 'new'}",
    ):  # fmt: skip
        said = command(*flags.split(), workdir=own_run, stdin=["bo da"]).complaint
        assert "checkpoints/100 is damaged (state/_METADATA is missing)" in said
        assert "or use an undamaged step (50, 75)" in said
    assert not (own_run / "new").exists()
    answer = command("translate", "--checkpoint=75", workdir=own_run, stdin=["bo da"])
    assert len(answer.lines) == 1


def test_a_checkpoint_that_training_removes_while_it_is_read_is_no_damage(
    own_run, monkeypatch
):
    """The parameters are those of the newest one that is left."""
    verify, removed = checkpoint_files.verify_checksums, []

    def remove_and_verify(folder):
        if not removed:
            removed.append(shutil.rmtree(folder))
        return verify(folder)

    monkeypatch.setattr(checkpoint_files, "verify_checksums", remove_and_verify)
    run = open_run(own_run)
    for which, left in (("latest", "75"), ("average:2", "average:9")):
        removed.clear()
        assert_same(read_parameters(run, which), read_parameters(run, left))
