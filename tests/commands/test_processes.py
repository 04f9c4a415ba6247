"""Several real processes on the loopback, as a cluster would start them."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.commands.cluster import PEER_TIMEOUT
from tests.commands.runs import config_flags, losses, newest_step, text_of

PATIENCE = 15  # seconds more, until the last one has ended on a busy machine
# Sums over other devices in another order, through some 25 updates of Adam at a small
# learning rate; at a large one any two runs diverge. Seen: 3.2e-7.
LOSS_BOUND = 2e-5
CORPORA = [{"name": "a", "weight": 1.5}, {"name": "b", "weight": 0.3}]
TWO = "processes: 2, each with 2 x cpu; 4 devices in all"

pytestmark = pytest.mark.slow


@pytest.fixture
def flags(flags):
    """Those of any run, of two corpora whose words are split at random."""
    changes = config_flags(
        "data", corpora=json.dumps(CORPORA), subword_sampling=0.2, versions=2
    )
    changes += config_flags("training", save_every=4)
    return (*flags, *changes, "--config.decoding.beam_size=1")


@pytest.fixture
def train(start, flags, tmp_path):
    """Start processes that train until something ends them, and have saved a step."""

    def run(count):
        workdir = tmp_path / "run"
        argv = (*flags, "--config.training.steps=1000000", f"--workdir={workdir}")
        cluster = start(count, *argv, devices=2)
        cluster.until(lambda: newest_step(workdir) >= 4)
        return cluster

    return run


def test_a_run_moves_between_numbers_of_processes(train, start, flags, tmp_path):
    """Two processes are asked to stop and four resume, with the losses of one.

    The two have a replica on each of four devices, the four two sharded replicas.
    """
    workdir, alone = tmp_path / "run", tmp_path / "alone"
    two = train(2)
    stopped = two.stop(1)
    assert (stopped["step"], stopped["stopped"]) == (newest_step(workdir), True)
    assert TWO in two.stderr()
    steps = stopped["step"] + 4
    flags += (f"--config.training.steps={steps}",)
    sizes = ("--config.mesh.data=2", "--config.mesh.fsdp=2")
    four = start(4, *flags, *sizes, f"--workdir={workdir}")
    assert four.result()["step"] == steps
    assert re.search(rf"resuming: .* step {stopped['step']} of", four.stderr())

    start(1, *flags, f"--workdir={alone}").result()
    found, expected = losses(workdir), losses(alone)
    assert sorted(found) == sorted(expected) == list(range(1, steps + 1))
    for step in found:
        np.testing.assert_allclose(found[step], expected[step], rtol=LOSS_BOUND)


@pytest.mark.parametrize(
    ("count", "lost", "number"),
    [
        (3, 2, signal.SIGKILL),
        (2, 1, signal.SIGSTOP),
        pytest.param(2, 0, signal.SIGKILL, marks=pytest.mark.nightly),
    ],
)
def test_a_lost_or_silent_process_ends_the_others(train, count, lost, number):
    cluster = train(count)
    parent = cluster.processes[lost].pid
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    os.kill(int(child) if number == signal.SIGSTOP else parent, number)
    end = time.monotonic() + PEER_TIMEOUT + PATIENCE
    for index in {*range(count)} - {lost}:
        assert cluster.processes[index].wait(end - time.monotonic()) == 3
        found = (
            f"process {lost} was lost (silent for up to {PEER_TIMEOUT} s, "
            "--peer_timeout)",
            "the connection to other processes was lost",  # a library aborted it
        )
        again = "start all processes again to resume from the newest checkpoint"
        assert cluster.complaint(index) in {
            f"jaxformer: process {index}: {each}; {again}" for each in found
        }
        assert "Traceback" not in cluster.stderr(index)


@pytest.mark.parametrize("index", [0, 1])
def test_a_process_without_its_peers_says_so(index, start, flags, tmp_path):
    one = start(2, *flags, f"--workdir={tmp_path / 'run'}", join_timeout=1, only=index)
    assert one.wait(60) == [3]
    assert "not all processes connected within 1 s" in one.complaint(index)


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


@pytest.mark.parametrize(
    "is_reranked", [pytest.param(False, marks=pytest.mark.nightly), True]
)
def test_two_processes_of_slurm_translate_as_one(
    start, trained, own_run, toy, use, is_reranked
):
    """Trained on eight devices; the order of lines and blank lines are kept."""
    lines = [*toy.test, "", *toy.dev]
    flags = [f"--choose={own_run}:-2"] if is_reranked else []
    command = ("--mode=translate", f"--workdir={trained.workdir}", *flags)
    two = start(2, *command, stdin=text_of(lines), devices=2, found=slurm)
    assert not any(two.wait(120)), two.stderr()
    assert two.stdout() == text_of(use("translate", *flags, stdin=lines).lines)
    assert TWO in two.stderr()


def test_two_processes_make_the_corpus_of_one(start, trained, toy, use, tmp_path):
    """Lines that are dropped before and after the search are counted once."""
    text = tmp_path / "text"
    text.write_text(text_of([*toy.test, "", *toy.dev, " ".join(toy.test)]))
    flags = (f"--source={text}", "--no-languages", "--least_log_probability=-0.5")
    one = use("translate_corpus", *flags, f"--output={tmp_path / 'one'}").result
    flags += ("--mode=translate_corpus", f"--workdir={trained.workdir}")
    two = start(2, *flags, f"--output={tmp_path / 'two'}", devices=2).result()
    assert (two["kept"], two["dropped"]) == (one["kept"], one["dropped"])
    assert one["dropped"]["too_long"] == one["dropped"]["empty"] == 1
    for name in ("train.en", "train.de"):
        texts = [(tmp_path / count / name).read_text() for count in ("one", "two")]
        assert texts[0] == texts[1]
    flags += (f"--output={tmp_path / 'one'}", "--beam_size=3")
    refused = start(2, *flags, devices=2)
    assert refused.wait(120) == [2, 2]
    assert "begun with beam_size=2, and this command has 3" in refused.complaint()


def test_two_processes_of_open_mpi_score_as_one(start, trained, use):
    one = use("evaluate", "--split=dev").result
    flags = ("--mode=evaluate", f"--workdir={trained.workdir}", "--split=dev")
    two = start(2, *flags, found=open_mpi).result()
    for name in ("bleu", "chrf", "signature", "sentences"):
        assert two[name] == one[name]
    assert two["nll"] == pytest.approx(one["nll"], rel=1e-5)
