"""Cloud TPU, GKE and Slurm: how their tools are called, recorded by stubs."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from apache_beam.options.pipeline_options import PipelineOptions
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from .conftest import LAUNCH, TRAIN, TRAINED, UNTIL_TERM

SLICE = {
    "NAME": "mine", "ZONE": "us-east5-b", "ACCELERATOR_TYPE": "v6e-16",
    "RUNTIME_VERSION": "v2-alpha-tpuv6e",
}  # fmt: skip
# describe prints the next state of $STATES, and fails at "NONE": there is no slice.
GCLOUD = """
case $* in
    *describe*)
        read -r state rest <<< "$(cat "$STATES")"
        echo "$rest" > "$STATES"
        [[ $state != NONE ]] && echo "$state" ;;
    *scp*) tar -tzf "$5" > "$STATES.tar" ;;
esac
"""
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
VM = ["gcloud", "compute", "tpus", "tpu-vm"]
ZONE = "--zone=us-east5-b"


@pytest.fixture
def tpu(checkout):
    """A checkout with a commit, and a gcloud; returns how to run a script there."""
    git = "git -c user.name=x -c user.email=x -c commit.gpgsign=false"
    commit = f"git init -q && git add launch && {git} commit -q -m x"
    subprocess.run(commit, shell=True, check=True, cwd=checkout.root)
    checkout.stub("gcloud", GCLOUD)
    checkout.stub("sleep")

    def run(script: str, *arguments: str, states: str = "ACTIVE", **variables: str):
        path = checkout.root / "states"
        path.write_text(states)
        variables = SLICE | {"STATES": str(path)} | variables
        return checkout.run(f"tpu_vm/{script}.sh", *arguments, **variables)

    run.checkout = checkout
    return run


def verbs(calls: list[list[str]]) -> list[str]:
    """The verb of each call: create, describe, scp, ssh, delete, sleep."""
    return [call[0] if call[0] == "sleep" else call[4] for call in calls]


def remote_command(call: list[str]) -> str:
    """The command of an ssh call to all workers."""
    assert call[:-1] == [*VM, "ssh", "mine", ZONE, "--worker=all"]
    return call[-1].removeprefix("--command=")


@pytest.mark.parametrize(
    ("states", "spot", "code"),
    [("A_WAIT A_WAIT ACTIVE", "", 0), ("ACTIVE", "yes", 0), ("FAILED", "yes", 1),
     ("A_WAIT SUSPENDED", "", 1)],
)  # fmt: skip
def test_create_requests_a_slice_and_waits_for_it(tpu, states, spot, code):
    found, stderr = tpu("create", states=states, SPOT=spot)
    assert found == code
    assert code == 0 or states.split()[-1] in stderr
    create, describe, *_ = calls = tpu.checkout.calls()
    assert create == [
        *QUEUED, "create", "mine", "--node-id=mine", ZONE, "--accelerator-type=v6e-16",
        "--runtime-version=v2-alpha-tpuv6e", *(["--spot"] if spot else []),
    ]  # fmt: skip
    state = "--format=value(state.state)"
    assert describe == [*QUEUED, "describe", "mine", ZONE, state]
    waits = states.count("A_WAIT")
    assert verbs(calls) == ["create"] + ["describe", "sleep"] * waits + ["describe"]


def test_copy_log_and_delete(tpu):
    """`copy` sends one archive of the last commit; `delete` asks no question."""
    for script in ("copy", "log", "delete"):
        assert tpu(script)[0] == 0
    copy, log, delete = tpu.checkout.calls()
    archive = copy.pop(5)
    assert copy == [*VM, "scp", "mine:", ZONE, "--worker=all"]
    assert not Path(archive).exists()  # deleted afterwards
    assert "launch/local.sh" in (tpu.checkout.root / "states.tar").read_text()
    assert log[:-1] == [*VM, "ssh", "mine", ZONE, "--worker=0"]
    assert log[-1].endswith("-F ~/jaxformer/train.log")
    assert delete == [*QUEUED, "delete", "mine", ZONE, "--force", "--quiet"]


def test_install_does_its_steps_in_order(tpu, tmp_path):
    """The remote command runs here, with stubs for the worker's programs."""
    assert tpu("install")[0] == 0
    checkout, home = tpu.checkout, tmp_path / "worker"
    (home / ".local/bin").mkdir(parents=True)
    checkout.stub("uv").rename(home / ".local/bin/uv")
    for name in ("python3", "tar"):
        checkout.stub(name)
    (call,) = checkout.calls()
    assert checkout.bash(remote_command(call), home) == 0
    assert checkout.calls()[1:] == [
        f"tar -xzf jaxformer.tar.gz -C {home / 'jaxformer'}".split(),
        ["python3", "-m", "pip", "install", "-q", "--user", "uv"],
        ["uv", "venv", "-q", "--allow-existing", "--python", "3.12", ".venv"],
        ["uv", "pip", "install", "-q", "-e", ".[tpu,gcs]"],
    ]


def test_run_and_stop_on_a_worker(tpu):
    """Their remote commands run here: train, refuse a second run, save and end."""
    checkout, home = tpu.checkout, tpu.checkout.root / "worker"
    home.mkdir()
    (home / "jaxformer").symlink_to(checkout.root, target_is_directory=True)
    assert tpu("run", *TRAIN)[0] == tpu("stop")[0] == 0
    run, stop = map(remote_command, checkout.calls())
    checkout.stub("sleep", 'exec /bin/sleep "$@"')
    checkout.stub("python", UNTIL_TERM)
    assert checkout.bash(run, home) == 0
    checkout.wait_for((home / "running").exists)
    assert checkout.bash(run, home) != 0
    assert checkout.bash(stop, home) == 0
    pythons = [call for call in checkout.calls() if call[0] == "python"]
    assert pythons == [["python", *TRAINED]]


@pytest.mark.parametrize(
    ("states", "expected"),
    [("ACTIVE", []), ("SUSPENDED ACTIVE", ["delete", "create", "describe"]),
     ("NONE ACTIVE", ["create", "describe"])],
    ids=["kept", "preempted", "gone"],
)  # fmt: skip
def test_resume(tpu, states, expected):
    """A new slice as needed; then copy, install and run, with run's arguments."""
    assert tpu("resume", *TRAIN, states=states)[0] == 0
    calls = tpu.checkout.calls()
    assert verbs(calls) == ["describe", *expected, "scp", "ssh", "ssh"]
    assert "uv pip install" in remote_command(calls[-2])
    assert "--config=configs/x.py" in remote_command(calls[-1])


def test_missing_variables_are_refused(tpu):
    """By name, before any call; the example sets all of them."""
    example = (LAUNCH / "tpu_vm/env.sh.example").read_text()
    more = {"create": ["ACCELERATOR_TYPE", "RUNTIME_VERSION"]}
    for path in (LAUNCH / "tpu_vm").glob("*.sh"):
        for name in ["NAME", "ZONE", *more.get(path.stem, [])]:
            code, stderr = tpu(path.stem, *TRAIN, **{name: ""})
            assert (code != 0, name in stderr) == (True, True), path
            assert f"export {name}=" in example
    assert tpu.checkout.calls() == []


# GKE and Slurm ----------------------------------------------------------------------


def test_jobset_restarts_lost_peers_and_fills_its_slice():
    """Exit code 2 alone fails the JobSet; the run is in a bucket."""
    jobset = yaml.safe_load((LAUNCH / "gke/jobset.yaml").read_text())
    # The API's models lose a field that does not exist and refuse a wrong type.
    assert JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    kind = (jobset["apiVersion"], jobset["kind"])
    assert kind == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    policy, (replicated,) = jobset["spec"].values()
    (rule,) = policy["rules"]
    assert (rule["action"], policy["maxRestarts"] > 0) == ("FailJobSet", True)
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    code_2 = {"containerName": container["name"], "operator": "In", "values": [2]}
    rules = [{"action": "FailJob", "onExitCodes": code_2}]
    assert job["podFailurePolicy"] == {"rules": rules}
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert pod["terminationGracePeriodSeconds"] >= 120
    rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert job["completions"] * chips == int(rows) * int(columns)
    assert job["parallelism"] == job["completions"]
    config, workdir = container["args"]
    assert (LAUNCH.parent / config).exists()
    assert workdir.startswith("gs://")


def test_a_pod_trains_and_a_preempted_one_has_not_finished(checkout):
    """Training saves on SIGTERM and ends with 0; the pod must not count as complete."""
    lines = (LAUNCH / "gke/Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["launch/gke/train.sh"]' in lines
    assert "RUN pip install --no-cache-dir -e '.[tpu,gcs]'" in lines
    checkout.stub("python", "exit 3")
    assert checkout.run("gke/train.sh", *TRAIN)[0] == 3
    assert checkout.calls() == [["python", *TRAINED]]
    checkout.stub("python", UNTIL_TERM)
    process = checkout.start("gke/train.sh", *TRAIN)
    checkout.wait_for((checkout.root / "running").exists)
    assert checkout.terminate(process) == 143


def test_apply_and_delete_the_jobset(checkout):
    checkout.stub("kubectl")
    assert checkout.run("gke/apply.sh")[0] == checkout.run("gke/delete.sh")[0] == 0
    file = f"{checkout.root}/launch/gke/jobset.yaml"
    delete = ["kubectl", "delete", "-f", file, "--ignore-not-found"]
    assert checkout.calls() == [["kubectl", "apply", "-f", file], delete]


def test_dataflow_prepares_in_a_bucket(checkout):
    """Beam takes the options."""
    checkout.stub("python")
    where = {"PROJECT": "mine", "REGION": "us-east5", "IMAGE": "image:1"}
    for name in where:
        code, stderr = checkout.run("dataflow/prepare.sh", *TRAIN, **where | {name: ""})
        assert (code != 0, name in stderr) == (True, True)
    assert checkout.run("dataflow/prepare.sh", *TRAIN, **where)[0] == 0
    ((*call, options, change),) = checkout.calls()
    assert call == [
        "python", "-m", "jaxformer.main", "prepare", "--config=configs/x.py",
        "gs://b/x",
    ]  # fmt: skip
    assert change == "--config.a.b=c d"
    runner, *given = shlex.split(options)
    assert runner == "--runner=DataflowRunner"
    given = PipelineOptions(given)
    found = given.get_all_options(drop_default=True)
    assert found == {
        "project": "mine", "region": "us-east5", "sdk_container_image": "image:1",
        "temp_location": "gs://b/x.temp",
    }  # fmt: skip


def test_slurm_starts_one_step_with_a_task_for_each_gpu(checkout):
    """SIGTERM goes to the tasks, not to the batch shell ("B:")."""
    checkout.stub("srun", "exit 3")
    code, _ = checkout.run("slurm/train.sbatch", *TRAIN, SLURM_CPUS_PER_TASK="8")
    assert code == 3  # the worst code of the tasks
    srun = ["srun", "--kill-on-bad-exit=1", "--cpus-per-task=8", ".venv/bin/python"]
    assert checkout.calls() == [[*srun, *TRAINED]]
    script = (LAUNCH / "slurm/train.sbatch").read_text()
    header, body = script.split("set -euo pipefail")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", header, re.M))
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert not {"gpus-per-task", "gpu-bind"} & set(options)
    assert (options["signal"], options["requeue"]) == ("TERM@120", "")
    assert "#SBATCH" not in body


def test_missing_arguments_are_refused(checkout):
    checkout.stub("srun")
    for script in ("slurm/train.sbatch", "gke/train.sh", "local.sh", "rehearse.sh"):
        for arguments in ((), TRAIN[:1]):
            code, _ = checkout.run(script, *arguments, SLURM_CPUS_PER_TASK="8")
            assert code != 0, script
    assert checkout.calls() == []
