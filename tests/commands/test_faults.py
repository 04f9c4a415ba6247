"""A run that is stopped or killed, whose disk is full or checkpoints are damaged."""

import resource

import pytest

from tests.commands.runs import losses, newest_step, saved_steps

LONG = 1_000_000  # updates; something else ends the run


@pytest.mark.slow
def test_a_run_survives_stops_a_kill_a_full_disk_and_a_damaged_checkpoint(
    start, flags, tmp_path
):
    workdir = tmp_path / "run"
    checkpoints = workdir / "checkpoints"

    def run(steps):
        end = f"--config.training.steps={steps}"
        return start(1, *flags, end, f"--workdir={workdir}")

    early = run(LONG)
    early.until(lambda: "training: " in early.stderr())
    assert early.stop()["stopped"]

    def unfinished():
        return [*checkpoints.glob("*.orbax-checkpoint-tmp")]

    killed = run(LONG)
    killed.until(lambda: newest_step(workdir) >= 20 and unfinished())
    killed.kill()
    step = newest_step(workdir)

    stopped = run(LONG)
    stopped.until(lambda: newest_step(workdir) > step)
    assert f"step {step} of" in stopped.stderr()
    step = stopped.stop()["step"]
    assert step == newest_step(workdir) == max(losses(workdir))
    assert "SIGTERM: stopping at the next step" in stopped.stderr()
    assert f"stopped at step {step:,}, which is saved" in stopped.stderr()
    assert not unfinished()

    # Of all files, those of checkpoints reach a limit on size first. A checkpoint whose
    # files happen to be small is saved; the next larger one is not.
    before = saved_steps(workdir)
    full = run(LONG)
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
