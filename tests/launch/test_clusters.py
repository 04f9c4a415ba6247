"""Cloud TPU, GKE and Slurm, with stubs in the place of their commands.

What is asserted is how the real tools would be called. No cloud is reached.
"""

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from .conftest import LAUNCH, UNTIL_TERM

SLICE = {
    "NAME": "mine", "ZONE": "us-east5-b", "ACCELERATOR_TYPE": "v6e-16",
    "RUNTIME_VERSION": "v2-alpha-tpuv6e", "SHARE": "10.0.0.2:/vol 1",
}  # fmt: skip
# describe prints the next state of $STATES; there is no slice once they are used up.
GCLOUD = """
case $* in
    *describe*)
        read -r state rest <<< "$(cat "$STATES")"
        echo "$rest" > "$STATES"
        [[ $state ]] && echo "$state" ;;
    *scp*) tar -tzf "$5" > "$STATES.tar" ;;
esac
"""
TRAIN = ("configs/x.py", "../shared/x", "--config.a.b=c d")
TRAINED = [
    "-m", "jaxformer.main", "--config=configs/x.py", "--workdir=../shared/x",
    "--config.a.b=c d",
]  # fmt: skip
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
VM = ["gcloud", "compute", "tpus", "tpu-vm"]


# Cloud TPU VMs ----------------------------------------------------------------------


@pytest.fixture
def tpu(checkout):
    """A checkout with a commit, and a gcloud; returns how to run a script there."""
    git = f"git -C {checkout.root} -c user.name=x -c user.email=x"
    commit = "-c commit.gpgsign=false commit -q -m x"
    for command in ("init -q", "add launch", commit):
        subprocess.run(f"{git} {command}", shell=True, check=True)
    checkout.stub("gcloud", GCLOUD)
    checkout.stub("sleep")

    def run(script: str, *arguments: str, states: str = "", **variables: str):
        path = checkout.root / "states"
        path.write_text(states)
        variables = SLICE | {"STATES": str(path)} | variables
        return checkout.run(f"tpu_vm/{script}.sh", *arguments, **variables)

    run.checkout = checkout
    return run


def verbs(calls: list[list[str]]) -> list[str]:
    """What each call asks for: create, describe, scp, ssh, delete, sleep."""
    return [call[0] if call[0] == "sleep" else call[4] for call in calls]


def remote_command(call: list[str]) -> str:
    """What an ssh call has all workers do."""
    assert call[:6] == [*VM, "ssh", "mine"]
    assert {"--zone=us-east5-b", "--worker=all"} <= set(call)
    return call[-1].removeprefix("--command=")


@pytest.mark.parametrize(
    ("states", "spot", "code"),
    [("A_WAIT A_WAIT ACTIVE", "", 0), ("ACTIVE", "yes", 0), ("FAILED", "yes", 1),
     ("A_WAIT SUSPENDED", "", 1)],
)  # fmt: skip
def test_create_requests_a_slice_and_waits_for_it_or_its_failure(
    tpu, states, spot, code
):
    found, stderr = tpu("create", states=states, SPOT=spot)
    assert found == code
    assert code == 0 or states.split()[-1] in stderr
    create, describe, *_ = calls = tpu.checkout.calls()
    assert create == [
        *QUEUED, "create", "mine", "--node-id=mine", "--zone=us-east5-b",
        "--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e",
        *(["--spot"] if spot else []),
    ]  # fmt: skip
    where = ["--zone=us-east5-b", "--format=value(state.state)"]
    assert describe == [*QUEUED, "describe", "mine", *where]
    waits = states.count("A_WAIT")
    assert verbs(calls) == ["create"] + ["describe", "sleep"] * waits + ["describe"]


def test_copy_sends_the_last_commit_to_all_workers(tpu):
    """As one archive, whose paths are those of the checkout."""
    assert tpu("copy")[0] == 0
    (call,) = tpu.checkout.calls()
    archive = call.pop(5)
    assert call == [*VM, "scp", "mine:", "--zone=us-east5-b", "--worker=all"]
    assert not Path(archive).exists()  # cleared away
    assert "launch/local.sh" in (tpu.checkout.root / "states.tar").read_text()


def test_install_does_its_steps_in_order(tpu, tmp_path):
    """Run here for real, with stubs for what a worker has."""
    assert tpu("install")[0] == 0
    checkout, home = tpu.checkout, tmp_path / "worker"
    (home / ".local/bin").mkdir(parents=True)
    checkout.stub("uv").rename(home / ".local/bin/uv")
    for name in ("sudo", "python3", "tar"):
        checkout.stub(name)
    checkout.stub("mountpoint", "exit 1")
    (call,) = checkout.calls()
    assert checkout.bash(remote_command(call), home) == 0
    shared = home / "shared"
    assert checkout.calls()[1:] == [
        f"mountpoint -q {shared}".split(),
        ["sudo", "apt-get", "install", "-y", "-q", "nfs-common"],
        ["sudo", "mount", "-t", "nfs", "10.0.0.2:/vol 1", str(shared)],
        f"sudo chmod go+rwx {shared}".split(),
        f"tar -xzf jaxformer.tar.gz -C {home / 'jaxformer'}".split(),
        ["python3", "-m", "pip", "install", "-q", "--user", "uv"],
        ["uv", "venv", "-q", "--allow-existing", "--python", "3.12", ".venv"],
        ["uv", "pip", "install", "-q", "-e", ".[tpu]"],
    ]


def test_run_and_stop_on_a_worker(tpu):
    """Their commands, run here for real: train, refuse a second run, save and end."""
    checkout, home = tpu.checkout, tpu.checkout.root / "worker"
    home.mkdir()
    (home / "jaxformer").symlink_to(checkout.root, target_is_directory=True)
    assert tpu("run", *TRAIN)[0] == 0
    assert tpu("stop")[0] == 0
    run, stop = (remote_command(call) for call in checkout.calls())
    checkout.stub("sleep", 'exec /bin/sleep "$@"')
    checkout.stub("python", UNTIL_TERM)
    assert checkout.bash(run, home) == 0
    checkout.wait_for((home / "running").exists)
    assert checkout.bash(run, home) != 0
    assert checkout.bash(stop, home) == 0
    trained = [call for call in checkout.calls() if call[0] == "python"]
    assert trained == [["python", *TRAINED]]


def test_log_follows_the_file_of_run_and_delete_deletes_the_nodes_too(tpu):
    """On the first worker; without a question."""
    assert tpu("log")[0] == tpu("delete")[0] == 0
    log, delete = tpu.checkout.calls()
    assert log[6:8] == ["--zone=us-east5-b", "--worker=0"]
    assert log[-1].endswith("-F ~/jaxformer/train.log")
    assert ">> train.log" in (LAUNCH / "tpu_vm/run.sh").read_text()
    flags = ["--zone=us-east5-b", "--force", "--quiet"]
    assert delete == [*QUEUED, "delete", "mine", *flags]


@pytest.mark.parametrize(
    ("states", "expected"),
    [("ACTIVE", []), ("SUSPENDED ACTIVE", ["delete", "create", "describe"]),
     ("", ["create", "describe"])],
    ids=["kept", "preempted", "gone"],
)  # fmt: skip
def test_resume(tpu, states, expected):
    """A new slice as needed; then copy, install and run, with run's arguments."""
    if not states:  # there is none to describe, then there is the new one
        body = GCLOUD.replace('[[ $state ]] && echo "$state"', "echo ACTIVE")
        first = 'if [[ ! -e $STATES.1 ]]; then touch "$STATES.1"; exit 1; fi;'
        body = body.replace("*describe*)", f"*describe*) {first}")
        tpu.checkout.stub("gcloud", body)
    assert tpu("resume", *TRAIN, states=states)[0] == 0
    calls = tpu.checkout.calls()
    assert verbs(calls) == ["describe", *expected, "scp", "ssh", "ssh"]
    assert "uv pip install" in remote_command(calls[-2])
    words = shlex.split(remote_command(calls[-1]))
    assert {"--config=configs/x.py", "--config.a.b=c d"} <= set(words)


@pytest.mark.parametrize(
    "script", ["create", "install", "copy", "run", "log", "stop", "resume", "delete"]
)
def test_missing_variables_are_refused(tpu, script):
    """By name, before anything is called; the example sets all of them."""
    example = (LAUNCH / "tpu_vm/env.sh.example").read_text()
    more = {"create": ["ACCELERATOR_TYPE", "RUNTIME_VERSION"], "install": ["SHARE"]}
    for name in ["NAME", "ZONE", *more.get(script, [])]:
        code, stderr = tpu(script, *TRAIN, states="ACTIVE", **{name: ""})
        assert code != 0
        assert name in stderr
        assert f"export {name}=" in example
    assert tpu.checkout.calls() == []


# GKE ----------------------------------------------------------------------------------


@pytest.fixture
def jobset():
    """The JobSet as kubectl would read it."""
    return yaml.safe_load((LAUNCH / "gke/jobset.yaml").read_text())


@pytest.fixture
def job(jobset):
    """The specification of its only Job."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def test_jobset_is_of_its_schema(jobset, job):
    """The API's models lose a field that does not exist and refuse a wrong type."""

    def known() -> dict:
        return JobsetV1alpha2JobSet.from_dict(jobset).to_dict()

    assert (jobset["apiVersion"], jobset["kind"]) == (
        "jobset.x-k8s.io/v1alpha2", "JobSet"
    )  # fmt: skip
    assert known() == jobset
    pod = job["template"]["spec"]
    pod["terminationGracePeriod"] = 300
    assert known() != jobset
    pod["terminationGracePeriodSeconds"] = "long"
    with pytest.raises(ValueError, match="terminationGracePeriodSeconds"):
        known()


def test_jobset_restarts_lost_peers_and_stops_at_exit_code_2(jobset, job):
    """Code 2 alone gives the Job the reason that fails the JobSet."""
    policy, pod = jobset["spec"]["failurePolicy"], job["template"]["spec"]
    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    name = pod["containers"][0]["name"]
    code_2 = {"containerName": name, "operator": "In", "values": [2]}
    rules = [{"action": "FailJob", "onExitCodes": code_2}]
    assert job["podFailurePolicy"] == {"rules": rules}
    assert job["backoffLimit"] == 0  # any other failure restarts all pods
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy needs it
    assert pod["terminationGracePeriodSeconds"] >= 120


def test_jobset_fills_its_slice_and_shares_its_workdir(job):
    """As many chips as the topology has; the workdir is on the claimed volume."""
    pod = job["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"]
    assert job["parallelism"] * chips == int(rows) * int(columns)
    config, workdir = container["args"]
    assert (LAUNCH.parent / config).exists()
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert "persistentVolumeClaim" in volume
    assert Path(mount["mountPath"]) in Path(workdir).parents


def test_pod_trains(checkout):
    """The arguments of the JobSet become those of training, and so does the code."""
    checkout.stub("python", "exit 3")
    assert checkout.run("gke/train.sh", *TRAIN)[0] == 3
    assert checkout.calls() == [["python", *TRAINED]]


def test_preempted_pod_has_not_finished(checkout):
    """Training saves and ends with 0; the pod must not count as complete."""
    checkout.stub("python", UNTIL_TERM)
    process = checkout.start("gke/train.sh", *TRAIN)
    checkout.wait_for((checkout.root / "running").exists)
    assert checkout.terminate(process) == 143


def test_image_installs_the_checkout_and_starts_that_script():
    lines = (LAUNCH / "gke/Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["launch/gke/train.sh"]' in lines
    assert "RUN pip install --no-cache-dir -e '.[tpu]'" in lines


def test_apply_and_delete_the_jobset(checkout):
    checkout.stub("kubectl")
    assert checkout.run("gke/apply.sh")[0] == checkout.run("gke/delete.sh")[0] == 0
    apply = ["kubectl", "apply", "-f", f"{checkout.root}/launch/gke/jobset.yaml"]
    delete = ["kubectl", "delete", *apply[2:], "--ignore-not-found"]
    assert checkout.calls() == [apply, delete]


# Slurm --------------------------------------------------------------------------------


def test_slurm_starts_a_step_of_all_tasks(checkout):
    """One srun, which ends with the worst code of its tasks."""
    checkout.stub("srun", "exit 3")
    code, _ = checkout.run("slurm/train.sbatch", *TRAIN, SLURM_CPUS_PER_TASK="8")
    assert code == 3
    srun = ["srun", "--kill-on-bad-exit=1", "--cpus-per-task=8", ".venv/bin/python"]
    assert checkout.calls() == [[*srun, *TRAINED]]


def test_slurm_requests_a_task_for_each_gpu():
    """And SIGTERM to the tasks, not to the batch shell ("B:"), and a requeue."""
    lines = (LAUNCH / "slurm/train.sbatch").read_text().splitlines()
    asked = [line.split()[1] for line in lines if line.startswith("#SBATCH ")]
    options = dict(option.removeprefix("--").partition("=")[::2] for option in asked)
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert not {"gpus-per-task", "gpu-bind"} & set(options)
    assert options["signal"] == "TERM@120"
    assert "requeue" in options
    first_command = lines.index("set -euo pipefail")
    assert all(not line.startswith("#SBATCH") for line in lines[first_command:])


@pytest.mark.parametrize(
    "script", ["slurm/train.sbatch", "gke/train.sh", "local.sh", "rehearse.sh"]
)
def test_missing_arguments_are_refused(checkout, script):
    """Before anything is started."""
    checkout.stub("srun")
    for arguments in ((), ("configs/x.py",)):
        code, _ = checkout.run(script, *arguments, SLURM_CPUS_PER_TASK="8")
        assert code != 0
    assert checkout.calls() == []
