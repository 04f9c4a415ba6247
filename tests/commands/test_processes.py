"""Several real processes on the loopback, as a cluster would start them."""

import re
import signal
import time

import numpy as np
import pytest

PEER_TIMEOUT = 10  # seconds; `start` asks for this
PATIENCE = 15  # seconds more, until the last one has ended on a busy machine
# Sums over other devices in another order, through some 25 updates of Adam at a small
# learning rate; at a large one any two runs diverge. Seen: 3.2e-7.
LOSS_BOUND = 2e-5
LONG = "--config.training.steps=1000000"  # something else ends it

pytestmark = pytest.mark.slow


def test_a_run_moves_between_numbers_of_processes(
    start, flags, newest_step, losses, tmp_path
):
    """Two processes are asked to stop and four resume, with the losses of one.

    The two have a replica on each of four devices, the four two sharded replicas.
    """
    workdir, alone = tmp_path / "run", tmp_path / "alone"
    two = start(2, *flags, LONG, f"--workdir={workdir}")
    two.until(lambda: newest_step(workdir) >= 10)
    stopped = two.stop(1)
    assert stopped == {"step": newest_step(workdir), "stopped": True}
    assert "processes: 2, each with 2 x cpu; 4 devices in all" in two.stderr()
    steps = stopped["step"] + 10
    flags += (f"--config.training.steps={steps}",)
    sizes = ("--config.mesh.data=2", "--config.mesh.fsdp=2")
    four = start(4, *flags, *sizes, f"--workdir={workdir}", devices=1)
    assert four.results()["step"] == steps
    assert re.search(rf"resuming: .* step {stopped['step']} of", four.stderr())

    start(1, *flags, f"--workdir={alone}", devices=1).results()
    found, expected = losses(workdir), losses(alone)
    assert sorted(found) == sorted(expected) == list(range(1, steps + 1))
    for step in found:
        np.testing.assert_allclose(found[step], expected[step], rtol=LOSS_BOUND)


@pytest.mark.parametrize(
    ("count", "number", "survivors"),
    [(3, signal.SIGKILL, [0, 1]), (2, signal.SIGSTOP, [0])],
)
def test_a_lost_or_silent_process_ends_the_others(
    start, flags, newest_step, tmp_path, count, number, survivors
):
    workdir = tmp_path / "run"
    cluster = start(count, *flags, LONG, f"--workdir={workdir}")
    cluster.until(lambda: newest_step(workdir) >= 10)
    cluster.processes[-1].send_signal(number)
    end = time.monotonic() + PEER_TIMEOUT + PATIENCE
    for index in survivors:
        assert cluster.processes[index].wait(end - time.monotonic()) == 3
        assert cluster.complaint(index).startswith(
            f"jaxformer: process {index}: process {count - 1} was lost (silent for up "
            "to 10 s, --peer_timeout); start all processes again"
        )
        assert "Traceback" not in cluster.stderr(index)


def test_a_lost_process_0_ends_the_others_at_once(start, flags, newest_step, tmp_path):
    """It holds the connections, so no other process waits for its heartbeat."""
    workdir = tmp_path / "run"
    two = start(2, *flags, LONG, f"--workdir={workdir}")
    two.until(lambda: newest_step(workdir) >= 10)
    two.processes[0].kill()
    assert two.wait(PEER_TIMEOUT + PATIENCE) == [-signal.SIGKILL, 3]
    assert "process 0, which holds the processes together, was lost" in two.complaint(1)


@pytest.mark.parametrize("index", [0, 1])
def test_a_process_without_its_peers_says_so(index, start, flags, tmp_path):
    one = start(2, *flags, f"--workdir={tmp_path / 'run'}", join_timeout=1, only=index)
    assert one.wait(60) == [3]
    assert "not all processes connected within 1 s" in one.complaint(index)


def test_every_process_reports_a_mistake(start, flags, tmp_path):
    two = start(2, *flags, "--config.mesh.data=3", f"--workdir={tmp_path / 'run'}")
    assert two.wait(90) == [2, 2]
    said = "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 does not fit 4 devices"
    assert all(said in two.complaint(index) for index in (0, 1))


def slurm(index):
    """The variables that srun sets for each task of a job."""
    return {
        "SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index),
        "SLURM_STEP_NUM_NODES": "1",
    }  # fmt: skip


def open_mpi(index):
    """The variables that mpirun sets for each rank."""
    return {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
    }  # fmt: skip


def test_two_processes_of_slurm_translate_as_one(start, trained, toy, use):
    """Trained on eight devices; the order of lines and blank lines are kept."""
    lines = [*toy.test, "", *toy.dev]
    expected = use("translate", lines=lines).lines
    stdin = "".join(f"{line}\n" for line in lines).encode()
    flags = ("--mode=translate", f"--workdir={trained.workdir}")
    two = start(2, *flags, stdin=stdin, found=slurm)
    assert set(two.wait(120)) == {0}, two.stderr()
    assert two.stdout().split("\n") == [*expected, ""]
    assert "processes: 2, each with 2 x cpu; 4 devices in all" in two.stderr()


def test_two_processes_of_open_mpi_score_as_one(start, trained, use):
    one = use("evaluate", "--split=dev").result
    flags = ("--mode=evaluate", f"--workdir={trained.workdir}", "--split=dev")
    two = start(2, *flags, found=open_mpi).results()
    for name in ("bleu", "chrf", "signature", "sentences"):
        assert two[name] == one[name]
    assert two["nll"] == pytest.approx(one["nll"], rel=1e-5)
