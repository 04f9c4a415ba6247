"""Several real processes on the loopback, as a cluster would start them.

Each has two simulated devices. What they compile is cached for all of them.
"""

import re
import signal
import time

import numpy as np
import pytest

PEER_TIMEOUT = 10  # seconds; `start` asks for this
PATIENCE = 15  # seconds more, until the last one has ended on a busy machine
STEPS = 400  # of the undisturbed run; more than any other comes to
# Sums over other devices in another order, through some 25 updates of Adam at a small
# learning rate; a large one makes any two runs part. Seen: 3.2e-7.
LOSS_BOUND = 2e-5
FOR_EVER = "--config.training.steps=1000000"  # something else ends it

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Where the first test that needs it trains, in one process on one device."""
    return tmp_path_factory.mktemp("undisturbed") / "run"


@pytest.fixture
def assert_same_losses(start, flags, undisturbed, losses):
    """The same batches, and the same losses within LOSS_BOUND, at each of the steps."""

    def compare(workdir, steps):
        if not undisturbed.exists():
            length = f"--config.training.steps={STEPS}"
            start(1, *flags, length, f"--workdir={undisturbed}", devices=1).results()
        assert 10 < steps < STEPS
        found, wanted = losses(workdir), losses(undisturbed)
        assert sorted(found) == list(range(1, steps + 1))
        np.testing.assert_allclose(
            [found[step] for step in sorted(found)],
            [wanted[step] for step in sorted(found)],
            rtol=LOSS_BOUND,
        )

    return compare


def test_a_run_moves_between_numbers_of_processes(
    start, flags, newest_step, assert_same_losses, tmp_path
):
    """Two processes are asked to stop, four go on, and end as one would have.

    The two have a replica on each device; of the four, two replicas are sharded.
    """
    workdir = tmp_path / "run"
    two = start(2, *flags, FOR_EVER, f"--workdir={workdir}")
    two.until(lambda: newest_step(workdir) >= 10)
    two.processes[1].send_signal(signal.SIGTERM)
    stopped = two.results()
    assert stopped == {"step": newest_step(workdir), "stopped": True}
    assert "processes: 2, each with 2 x cpu; 4 devices in all" in two.stderr(0)
    steps = stopped["step"] + 10
    length = f"--config.training.steps={steps}"
    sizes = ("--config.mesh.data=2", "--config.mesh.fsdp=4")
    four = start(4, *flags, *sizes, length, f"--workdir={workdir}")
    assert four.results()["step"] == steps
    assert re.search(rf"resuming: .* step {stopped['step']} of", four.stderr(0))
    assert_same_losses(workdir, steps)


def test_when_one_dies_the_others_end_and_the_run_goes_on_with_fewer(
    start, flags, newest_step, assert_same_losses, tmp_path
):
    workdir = tmp_path / "run"
    four = start(4, *flags, FOR_EVER, f"--workdir={workdir}")
    four.until(lambda: newest_step(workdir) >= 10)
    four.processes[2].kill()
    begin = time.monotonic()
    codes = four.wait(PEER_TIMEOUT + PATIENCE)
    assert time.monotonic() - begin < PEER_TIMEOUT + PATIENCE
    assert codes == [3, 3, -signal.SIGKILL, 3]
    for index in (0, 1, 3):
        assert four.complaint(index).startswith(f"jaxformer: process {index}: process ")
        assert "was lost (silent for up to 10 s, --peer_timeout)" in four.complaint(
            index
        )
        assert "Traceback" not in four.stderr(index)
    steps = newest_step(workdir) + 10
    length = f"--config.training.steps={steps}"
    one = start(1, *flags, length, f"--workdir={workdir}", devices=1).results()
    assert one["step"] == steps
    assert_same_losses(workdir, steps)


def test_when_the_first_dies_the_others_end_at_once(
    start, flags, newest_step, tmp_path
):
    """It holds the processes together, so nobody has to wait for its heartbeat."""
    workdir = tmp_path / "run"
    two = start(2, *flags, FOR_EVER, f"--workdir={workdir}")
    two.until(lambda: newest_step(workdir) >= 10)
    two.processes[0].kill()
    assert two.wait(PEER_TIMEOUT + PATIENCE) == [-signal.SIGKILL, 3]
    assert "process 0, which holds the processes together, was lost" in two.complaint(1)


def test_a_process_that_hangs_is_as_good_as_dead(start, flags, newest_step, tmp_path):
    workdir = tmp_path / "run"
    two = start(2, *flags, FOR_EVER, f"--workdir={workdir}")
    two.until(lambda: newest_step(workdir) >= 10)
    two.processes[1].send_signal(signal.SIGSTOP)
    assert two.processes[0].wait(PEER_TIMEOUT + PATIENCE) == 3
    assert "process 1 was lost" in two.complaint(0)


@pytest.mark.parametrize("index", [0, 1])
def test_a_process_that_stays_alone_says_so(index, start, flags, tmp_path):
    one = start(2, *flags, f"--workdir={tmp_path / 'run'}", join_timeout=3, only=index)
    assert one.wait(60) == [3]
    assert "not all processes came together within 3 s" in one.complaint(index)


def test_what_is_wrong_is_said_by_each_and_nobody_hangs(start, flags, tmp_path):
    two = start(2, *flags, "--config.mesh.data=3", f"--workdir={tmp_path / 'run'}")
    assert two.wait(90) == [2, 2]
    for index in (0, 1):
        assert "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 does not fit 4 devices" in (
            two.complaint(index)
        )


def test_what_eight_devices_learnt_two_processes_translate_the_same(
    start, trained, toy, command
):
    """The model was trained on eight devices; blank lines and their order stay."""
    lines = [*toy.test, "", *toy.dev]
    stdin = "".join(f"{line}\n" for line in lines).encode()
    flags = ("--mode=translate", f"--workdir={trained.workdir}")
    wanted = command(*flags, stdin=stdin).lines
    assert wanted[: len(toy.test)] != toy.test
    cluster = start(2, *flags, stdin=stdin)
    assert set(cluster.wait(120)) == {0}, cluster.stderr(0)
    assert cluster.stdout(0).split("\n") == [*wanted, ""]


def test_two_processes_score_as_one(start, trained, command):
    flags = ("--mode=evaluate", f"--workdir={trained.workdir}")
    one = command(*flags, "--split=dev").result
    two = start(2, *flags, "--split=dev").results()
    for name in ("bleu", "chrf", "signature", "sentences"):
        assert two[name] == one[name]
    assert two["nll"] == pytest.approx(one["nll"], rel=1e-5)


def slurm(index):
    """What srun tells each task of a job."""
    return {
        "SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index),
        "SLURM_STEP_NUM_NODES": "1",
    }  # fmt: skip


def open_mpi(index):
    """What mpirun tells each rank."""
    return {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
    }  # fmt: skip


@pytest.mark.parametrize("found", [slurm, open_mpi])
def test_processes_find_each_other_without_flags(found, start, trained):
    flags = ("--mode=score", f"--workdir={trained.workdir}", "--split=dev")
    two = start(2, *flags, found=found)
    assert two.results()["sentences"] == 12
    assert "processes: 2, each with 2 x cpu; 4 devices in all" in two.stderr(0)
