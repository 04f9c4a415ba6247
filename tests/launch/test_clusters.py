"""Cloud TPU, GKE and Slurm, with stubs in the place of their commands.

What is asserted is how the real tools would be called. No cloud is reached.
"""

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

LAUNCH = Path(__file__).parents[2] / "launch"
SLICE = {
    "NAME": "mine",
    "ZONE": "us-east5-b",
    "ACCELERATOR_TYPE": "v6e-16",
    "RUNTIME_VERSION": "v2-alpha-tpuv6e",
    "SHARE": "10.0.0.2:/vol 1",
}
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
UNTIL_TERM = """
trap 'exit 0' TERM
echo >> "$HOME/running"
for ((i = 0; i < 500; i++)); do sleep 0.02; done  # not for ever
"""
TRAIN = ("configs/x.py", "../shared/x", "--config.a.b=c d")
TRAINED = [
    "-m", "jaxformer.main", "--config=configs/x.py", "--workdir=../shared/x",
    "--config.a.b=c d",
]  # fmt: skip


# Cloud TPU VMs ----------------------------------------------------------------------


@pytest.fixture
def tpu(checkout):
    """A checkout with a commit, and a gcloud; returns how to run a script there."""
    git = ["git", "-C", str(checkout.root), "-c", "user.name=x", "-c", "user.email=x"]
    commit = ["-c", "commit.gpgsign=false", "commit", "-q", "-m", "x"]
    for command in (["init", "-q"], ["add", "launch"], commit):
        subprocess.run([*git, *command], check=True)
    checkout.stub("gcloud", GCLOUD)
    checkout.stub("sleep")

    def run(script: str, *arguments: str, states: str = "", **environment: str):
        path = checkout.root / "states"
        path.write_text(states)
        return checkout.run(
            f"tpu_vm/{script}.sh",
            *arguments,
            **(SLICE | {"STATES": str(path)} | environment),
        )

    run.checkout = checkout
    return run


def verbs(calls: list[list[str]]) -> list[str]:
    """What each call asks for: create, describe, scp, ssh, delete, sleep."""
    return [call[0] if call[0] == "sleep" else call[4] for call in calls]


def remote_command(call: list[str]) -> str:
    """What an ssh call has all workers do."""
    assert call[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "mine"]
    assert {"--zone=us-east5-b", "--worker=all"} <= set(call)
    return call[-1].removeprefix("--command=")


def test_create_asks_and_waits(tpu):
    """Until the slice is there."""
    code, _ = tpu("create", states="WAITING_FOR_RESOURCES PROVISIONING ACTIVE", SPOT="")
    assert code == 0
    create, describe, *_ = calls = tpu.checkout.calls()
    assert create == [
        "gcloud", "compute", "tpus", "queued-resources", "create", "mine",
        "--node-id=mine", "--zone=us-east5-b", "--accelerator-type=v6e-16",
        "--runtime-version=v2-alpha-tpuv6e",
    ]  # fmt: skip
    assert describe == [
        "gcloud", "compute", "tpus", "queued-resources", "describe", "mine",
        "--zone=us-east5-b", "--format=value(state.state)",
    ]  # fmt: skip
    assert verbs(calls) == ["create"] + ["describe", "sleep"] * 2 + ["describe"]


def test_create_spot(tpu):
    """A word in SPOT asks for a Spot slice."""
    assert tpu("create", states="ACTIVE", SPOT="yes")[0] == 0
    assert tpu.checkout.calls()[0][-1] == "--spot"


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_create_fails_where_the_request_does(tpu, state):
    """It does not wait for what will not come."""
    code, stderr = tpu("create", states=f"WAITING_FOR_RESOURCES {state}")
    assert code != 0
    assert state in stderr


def test_copy_sends_the_last_commit_to_all_workers(tpu):
    """As one archive, whose paths are those of the checkout."""
    assert tpu("copy")[0] == 0
    (call,) = tpu.checkout.calls()
    assert call[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "scp"]
    assert call[6:] == ["mine:", "--zone=us-east5-b", "--worker=all"]
    assert not Path(call[5]).exists()  # cleared away
    assert "launch/local.sh" in (tpu.checkout.root / "states.tar").read_text()


def test_install_does_its_steps_in_order(tpu, tmp_path):
    """Run here for real, with stubs for what a worker has."""
    assert tpu("install")[0] == 0
    command = remote_command(tpu.checkout.calls()[-1])
    checkout = tpu.checkout
    home = tmp_path / "worker"
    (home / ".local/bin").mkdir(parents=True)
    checkout.stub("uv").rename(home / ".local/bin/uv")
    for name in ("sudo", "python3", "tar"):
        checkout.stub(name)
    checkout.stub("mountpoint", "exit 1")
    before = len(checkout.calls())
    worker = checkout.environment | {"HOME": str(home)}
    subprocess.run(["bash", "-c", command], cwd=home, env=worker, check=True)
    shared, code = str(home / "shared"), str(home / "jaxformer")
    assert checkout.calls()[before:] == [
        ["mountpoint", "-q", shared],
        ["sudo", "apt-get", "install", "-y", "-q", "nfs-common"],
        ["sudo", "mount", "-t", "nfs", "10.0.0.2:/vol 1", shared],
        ["sudo", "chmod", "go+rwx", shared],
        ["tar", "-xzf", "jaxformer.tar.gz", "-C", code],
        ["python3", "-m", "pip", "install", "-q", "--user", "uv"],
        ["uv", "venv", "-q", "--allow-existing", "--python", "3.12", ".venv"],
        ["uv", "pip", "install", "-q", "-e", ".[tpu]"],
    ]


def test_run_and_stop_on_a_worker(tpu, eventually):
    """Their commands, run here for real: train, refuse a second run, save and end."""
    checkout = tpu.checkout
    home = checkout.root / "worker"
    home.mkdir()
    (home / "jaxformer").symlink_to(checkout.root, target_is_directory=True)
    assert tpu("run", *TRAIN)[0] == 0
    assert tpu("stop")[0] == 0
    run, stop = (remote_command(call) for call in checkout.calls())
    checkout.stub("sleep", 'exec /bin/sleep "$@"')
    checkout.stub("python", UNTIL_TERM)

    def on_worker(command: str) -> int:
        environment = checkout.environment | {"HOME": str(home)}
        return subprocess.run(["bash", "-c", command], env=environment).returncode

    assert on_worker(run) == 0
    eventually((home / "running").exists)
    assert on_worker(run) != 0
    assert on_worker(stop) == 0
    trained = [call for call in checkout.calls() if call[0] == "python"]
    assert trained == [["python", *TRAINED]]


def test_log_follows_the_first_worker(tpu):
    """It reads the file that run.sh writes."""
    assert tpu("log")[0] == 0
    (call,) = tpu.checkout.calls()
    assert call[6:8] == ["--zone=us-east5-b", "--worker=0"]
    assert call[-1].endswith("-F ~/jaxformer/train.log")
    assert ">> train.log" in (LAUNCH / "tpu_vm/run.sh").read_text()


def test_delete(tpu):
    """The nodes of the queued resource too, without a question."""
    assert tpu("delete")[0] == 0
    (call,) = tpu.checkout.calls()
    assert call[:6] == [
        "gcloud",
        "compute",
        "tpus",
        "queued-resources",
        "delete",
        "mine",
    ]
    assert call[6:] == ["--zone=us-east5-b", "--force", "--quiet"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("ACTIVE", []),
        ("SUSPENDED ACTIVE", ["delete", "create", "describe"]),
        ("", ["create", "describe"]),  # nothing is left
    ],
    ids=["kept", "preempted", "gone"],
)
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
    ("script", "needed"),
    [
        ("create", ["NAME", "ZONE", "ACCELERATOR_TYPE", "RUNTIME_VERSION"]),
        ("copy", ["NAME", "ZONE"]),
        ("install", ["NAME", "ZONE", "SHARE"]),
        ("run", ["NAME", "ZONE"]),
        ("log", ["NAME", "ZONE"]),
        ("stop", ["NAME", "ZONE"]),
        ("resume", ["NAME", "ZONE"]),
        ("delete", ["NAME", "ZONE"]),
    ],
)
def test_missing_variables_are_refused(tpu, script, needed):
    """By name, before anything is called; the example sets all of them."""
    example = (LAUNCH / "tpu_vm/env.sh.example").read_text()
    for name in needed:
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


def known(jobset: dict) -> dict:
    """What of a JobSet its API knows; raises where a value is of a wrong type."""
    return JobsetV1alpha2JobSet.from_dict(jobset).to_dict()


def test_jobset_is_of_its_schema(jobset):
    """The API's models, of JobSet, Job and Pod, know every field and its type."""
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert jobset["kind"] == "JobSet"
    assert known(jobset) == jobset


def test_the_schema_finds_mistakes(jobset):
    """A field that does not exist is lost; a wrong type is refused."""
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["terminationGracePeriod"] = 300
    assert known(jobset) != jobset
    pod["terminationGracePeriodSeconds"] = "long"
    with pytest.raises(ValueError, match="terminationGracePeriodSeconds"):
        known(jobset)


def test_jobset_restarts_lost_peers_and_stops_at_exit_code_2(jobset):
    """Code 2 alone gives the Job the reason that fails the JobSet."""
    policy = jobset["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [2],
    }
    assert job["backoffLimit"] == 0  # any other failure starts all pods again
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy asks for it
    assert pod["terminationGracePeriodSeconds"] >= 120


def test_jobset_fills_its_slice_and_shares_its_workdir(jobset):
    """As many chips as the topology has; the workdir is on the claimed volume."""
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"]
    assert job["parallelism"] * chips == int(rows) * int(columns)
    config, workdir = container["args"]
    assert (LAUNCH.parent / config).exists()
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount["name"] == volume["name"]
    assert "persistentVolumeClaim" in volume
    assert Path(mount["mountPath"]) in Path(workdir).parents


def test_pod_trains(checkout):
    """The arguments of the JobSet become those of training, and so does the code."""
    checkout.stub("python", "exit 3")
    assert checkout.run("gke/train.sh", *TRAIN)[0] == 3
    assert checkout.calls() == [["python", *TRAINED]]


def test_preempted_pod_has_not_finished(checkout, eventually):
    """Training saves and ends with 0; the pod must not count as complete."""
    checkout.stub("python", UNTIL_TERM)
    process = checkout.start("gke/train.sh", *TRAIN)
    eventually((checkout.root / "running").exists)
    assert checkout.terminate(process) == 143


def test_image_starts_that_script():
    """The Dockerfile's entry point exists in what it copies."""
    lines = (LAUNCH / "gke/Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["launch/gke/train.sh"]' in lines
    assert "RUN pip install --no-cache-dir -e '.[tpu]'" in lines


def test_apply_and_delete(checkout):
    """Both are about that one file."""
    checkout.stub("kubectl")
    path = str(checkout.root / "launch/gke/jobset.yaml")
    assert checkout.run("gke/apply.sh")[0] == 0
    assert checkout.run("gke/delete.sh")[0] == 0
    assert checkout.calls() == [
        ["kubectl", "apply", "-f", path],
        ["kubectl", "delete", "-f", path, "--ignore-not-found"],
    ]


# Slurm --------------------------------------------------------------------------------


def test_slurm_starts_a_step_of_all_tasks(checkout):
    """One srun, which ends with the worst code of its tasks."""
    checkout.stub("srun", "exit 3")
    code, _ = checkout.run("slurm/train.sbatch", *TRAIN, SLURM_CPUS_PER_TASK="8")
    assert code == 3
    srun = ["srun", "--kill-on-bad-exit=1", "--cpus-per-task=8", ".venv/bin/python"]
    assert checkout.calls() == [[*srun, *TRAINED]]


def test_slurm_asks_for_a_task_for_each_gpu():
    """And for SIGTERM to the tasks, not to the batch shell ("B:"), and a requeue."""
    lines = (LAUNCH / "slurm/train.sbatch").read_text().splitlines()
    asked = [line.split()[1] for line in lines if line.startswith("#SBATCH ")]
    options = dict(option.removeprefix("--").partition("=")[::2] for option in asked)
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert not {"gpus-per-task", "gpu-bind"} & set(options)
    assert options["signal"] == "TERM@120"
    assert "requeue" in options
    first_command = lines.index("set -euo pipefail")
    assert all(not line.startswith("#SBATCH") for line in lines[first_command:])


@pytest.mark.parametrize("arguments", [(), ("configs/x.py",)], ids=["none", "one"])
@pytest.mark.parametrize(
    "script", ["slurm/train.sbatch", "gke/train.sh", "local.sh", "rehearse.sh"]
)
def test_missing_arguments_are_refused(checkout, script, arguments):
    """Before anything is started."""
    checkout.stub("srun")
    code, _ = checkout.run(script, *arguments, SLURM_CPUS_PER_TASK="8")
    assert code != 0
    assert checkout.calls() == []
