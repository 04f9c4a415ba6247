"""benchmarks/gpu.py: steps end in time, failures are recorded, packs are complete."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu, gpu_europarl, gpu_session, packing
from benchmarks.gpu_session import Failed, Session
from jaxformer.system.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def session(tmp_path):
    made = Session(tmp_path, tmp_path, tmp_path, dict(os.environ))
    made.until = time.monotonic() + 60
    yield made
    made.end_all()


def written(folder):
    return [*map(json.loads, (folder / "gpu.jsonl").read_text().splitlines())]


def steps(monkeypatch, **functions):
    found = {name: gpu.Step(run, 1, 60) for name, run in functions.items()}
    monkeypatch.setattr(gpu, "STEPS", found)
    monkeypatch.setattr(gpu, "describe_machine", lambda: {"card": "a card"})


def run(tmp_path, *flags):
    return gpu.main([f"--output={tmp_path / 'out'}", *flags])


def test_a_step_that_fails_leaves_its_error_and_the_next_one_runs(
    tmp_path, monkeypatch, capsys
):
    def fails(session, options):
        yield "first", {"a": 1}
        raise ZeroDivisionError

    def works(session, options):
        yield "only", session.run("-c", 'print(\'said\\n{"b": 2, "machine": 0}\')')

    steps(monkeypatch, fails=fails, works=works)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "none")
    assert run(tmp_path) == 1
    lines = written(tmp_path / "out")
    assert [(each["step"], each["part"]) for each in lines] == [
        ("fails", "first"), ("fails", "error"), ("works", "only"), ("works", "all"),
    ]  # fmt: skip
    assert "Traceback" in lines[1]["error"]
    assert lines[2]["found"] == {"b": 2}
    assert all(each["card"] == "a card" for each in lines)
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["steps"] == {"fails": "failed", "works": "ended"}


def test_no_step_starts_that_cannot_end_before_the_deadline(
    tmp_path, monkeypatch, capsys
):
    steps(monkeypatch, long=lambda *_: pytest.fail("it started"))
    assert run(tmp_path, "--steps=long", "--deadline=5") == 1
    assert "not started" in capsys.readouterr().out
    assert run(tmp_path, "--steps=nothing") == 2
    assert "there is no step nothing; --steps takes long" in capsys.readouterr().err


def test_a_command_that_does_not_end_in_time_is_killed_with_its_children(
    tmp_path, monkeypatch
):
    child = "import time; time.sleep(600)"
    parent = "import subprocess, sys, pathlib; p = subprocess.Popen([sys.executable, "
    parent += f"'-c', {child!r}]); pathlib.Path(sys.argv[1]).write_text(str(p.pid)); "
    parent += "p.wait()"
    file = tmp_path / "pid"

    def hangs(session, options):
        command = session.start("-c", parent, str(file))
        while not (file.exists() and file.read_text()):
            time.sleep(0.01)
        session.until = time.monotonic() + 0.1
        yield "never", command.result()

    steps(monkeypatch, hangs=hangs)
    assert run(tmp_path, "--steps=hangs", "--deadline=60") == 1
    assert "not ended in time" in written(tmp_path / "out")[0]["error"]
    status = Path(f"/proc/{file.read_text()}/status")
    end = time.monotonic() + 20
    while status.exists() and "zombie" not in status.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="util-linux is not installed")
def test_a_command_ends_when_the_program_is_killed(tmp_path):
    """Even by SIGKILL; its output folder is the only thing that is left."""
    file = tmp_path / "pid"
    hangs = "import os, pathlib, time; "
    hangs += f"pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    code = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.gpu_session import Session
folder = pathlib.Path({str(tmp_path)!r})
session = Session(folder, folder, folder, dict(os.environ))
session.start("-c", {hangs!r})
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as program:
        end = time.monotonic() + 60
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < end
            time.sleep(0.01)
        program.kill()
    status = Path(f"/proc/{file.read_text()}/status")
    while status.exists() and "zombie" not in status.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_command_that_fails_is_named_with_the_end_of_its_log(session):
    with pytest.raises(
        Failed, match=r"-c raise(.|\n)*exit code 1(.|\n)*ValueError: why"
    ):
        session.run("-c", "raise ValueError('why')")
    with pytest.raises(Failed, match="exit code 0"):
        session.run("-c", "print('no JSON')")


def test_a_training_that_ends_early_is_an_error_and_not_waited_for(session, tmp_path):
    log = tmp_path / "metrics.jsonl"
    training = session.start("-c", "raise SystemExit(2)")
    with pytest.raises(Failed, match="exit code 2"):
        gpu_europarl.read_progress(session, training, log, 2)
    log.write_text('{"time": 1}\n{"time": 2}\n{"ti')
    training = session.start("-c", "import time; time.sleep(60)")
    assert gpu_europarl.read_progress(session, training, log, 2) == [
        {"time": 1},
        {"time": 2},
    ]


def test_only_steps_without_a_result_run_by_default(tmp_path, monkeypatch):
    results = tmp_path / "gpu.jsonl"
    monkeypatch.setattr(gpu, "RESULTS", results)
    assert gpu.without_result() == [*gpu.STEPS]
    lines = [{"step": "agreement", "part": "all"}, {"step": "train", "part": "base"}]
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert gpu.without_result() == [
        "attention", "europarl", "train", "decode", "big",
    ]  # fmt: skip


def test_the_card_is_sampled_while_a_part_runs(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        """#!/bin/sh
case "$*" in
*driver_version*) echo "A Card, 580.1, 1980 MHz, 700 W" ;;
*) while true; do echo "1500, 600, 5000, 99"; sleep 0.01; done ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with gpu_session.sampled() as found:
        time.sleep(0.5)
    assert found["power.draw"] == (600, 600)
    assert gpu_session.describe_machine()["card"] == "A Card, 580.1, 1980 MHz, 700 W"


class Commands:
    """Stands in for a session: commands end when the test lets them, or fail."""

    def __init__(self, folder, left, failing=()):
        self.output = self.large = folder
        self.left, self.failing, self.started = left, failing, []

    def start(self, *words):
        self.started.append(words)
        outer, mode = self, next(word for word in words if "--mode=" in word)

        class Started:
            is_running = mode == "--mode=train"

            def stop(self):
                self.is_running = False

            def wait(self, seconds):
                outer.waited = seconds

            def result(self, spare=0.0):
                if mode in outer.failing:
                    raise Failed(f"{mode} failed")
                return {"mode": mode, "spare": spare}

        return Started()


@pytest.mark.parametrize(
    ("left", "updates", "steps"),
    [(1000, 9000, 9000), (375, 9000, 4000), (100, 9000, 200)],
)
def test_the_updates_are_as_many_as_the_time_allows(tmp_path, left, updates, steps):
    """An update takes 0.05 s; 70 + 75 + 30 seconds are for the rest."""
    (tmp_path / "europarl" / "checkpoints" / "9000").mkdir(parents=True)
    lines = [{"time": 10.0}, {"time": 12.5, "tokens_per_second": 1}]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "europarl" / "metrics.jsonl").write_text(text)
    options = SimpleNamespace(rehearse=False, data=tmp_path, updates=updates)
    commands = Commands(tmp_path, left)
    found = dict(gpu_europarl.europarl(commands, options))
    assert found["speed"]["steps"] == steps
    assert found["speed"]["hours_of_the_paper"] == pytest.approx(0.05 * 1e5 / 3600)
    assert commands.waited == left - 105  # after which training is stopped
    assert found["train"]["spare"] == 30
    assert list(found) == [
        "prepare", "speed", "validation", "train", "newstest2014", "test_debates",
        "report",
    ]  # fmt: skip
    planned = next(
        words
        for words in commands.started
        if f"--config.training.steps={steps}" in words
        and any("save_every" in word for word in words)
    )
    assert f"--config.training.save_every={steps // 20}" in planned


def test_a_training_that_fails_is_scored_by_its_checkpoints(tmp_path):
    (tmp_path / "europarl" / "checkpoints" / "9000").mkdir(parents=True)
    log = '{"time": 1}\n{"time": 2, "tokens_per_second": 1}\n'
    (tmp_path / "europarl" / "metrics.jsonl").write_text(log)
    options = SimpleNamespace(rehearse=False, data=tmp_path, updates=200)
    commands = Commands(tmp_path, 500)
    parts = gpu_europarl.europarl(commands, options)
    assert [next(parts)[0], next(parts)[0]] == ["prepare", "speed"]
    commands.failing = ("--mode=train",)
    found = []
    with pytest.raises(Failed, match="train: --mode=train failed"):
        found.extend(part for part, _ in parts)
    assert found[-3:] == ["newstest2014", "test_debates", "report"]
    assert (tmp_path / "europarl_metrics.jsonl").exists()


def test_samples_are_of_the_moments_with_work():
    lines = ["345, 70.1, 3, 0", "1980, 600.0, 5000, 99", "1500, 700.0, 6000, 98"]
    lines += ["1700, [N/A], 5, 5", "19"]
    assert gpu_session.summarise(lines) == {
        "clocks.sm": (1740, 1980), "power.draw": (650, 700),
        "memory.used": (5500, 6000), "utilization.gpu": (98.5, 99),
    }  # fmt: skip
    assert gpu_session.summarise([]) == {}


@pytest.mark.parametrize("kind", packing.KINDS)
def test_a_pack_has_code_commit_wheels_and_text(tmp_path, monkeypatch, kind):
    data, folder, commands = tmp_path / "data", tmp_path / "pack", []
    for name in ("europarl_enfr/train.en.zst", "newstest_enfr/a.en.gz", "other/b"):
        (data / name).parent.mkdir(parents=True)
        (data / name).write_bytes(b"text")

    def download(command, **others):
        if "git" in command:  # there is no repository
            raise subprocess.CalledProcessError(128, command)
        if "pip" not in command:
            return original(command, **others)
        commands.append(command)
        return (folder / "wheels").mkdir()

    original = subprocess.run
    monkeypatch.setattr(subprocess, "run", download)
    sizes = packing.pack(kind, folder, data)["megabytes"]
    assert ("ctranslate2" in commands[0]) == (kind == "ctranslate2")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"benchmarks/gpu.py", "jaxformer/configs/europarl_enfr.py"} <= files
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert (folder / "commit").read_text() == "unknown"
    texts = {"text/europarl_enfr/train.en.zst", "text/newstest_enfr/a.en.gz"}
    assert (texts <= files) == (kind == "text")
    assert "text/other/b" not in files
    assert sizes["jaxformer"] > 0.5
    if kind == "text":  # a page needs no more of vl-convert
        code = "import vl_convert; print(len(vl_convert.javascript_bundle()))"
        environment = os.environ | {"PYTHONPATH": str(folder / "wheels")}
        said = subprocess.check_output(
            [sys.executable, "-c", code], env=environment, text=True
        )
        assert int(said) > 100_000
    with pytest.raises(InputError, match="exists"):
        packing.pack(kind, folder, data)


def test_wheels_of_a_pack_are_found_here_and_by_commands(session, monkeypatch):
    """A wheel is a package and its description, zipped."""
    wheels, site = session.output / "wheels", session.output / "site"
    wheels.mkdir()
    (wheels / "vega.js").write_text("")
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheels / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "LOAD = 5")
        wheel.writestr("carried-1.0.dist-info/WHEEL", about)
        named = "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n"
        wheel.writestr("carried-1.0.dist-info/METADATA", named)
        wheel.writestr("carried-1.0.dist-info/RECORD", "")
    monkeypatch.setattr(packing, "WHEELS", wheels)
    monkeypatch.setattr(sys, "path", [*sys.path])
    packing.install(site, session.environment)
    assert find_spec("carried")
    code = "import carried, json; print(json.dumps({'load': carried.LOAD}))"
    assert session.run("-c", code) == {"load": 5}
    assert (site / "vega.js").exists()


def test_a_pack_of_text_needs_the_text(tmp_path):
    with pytest.raises(InputError, match="give --data"):
        packing.pack("text", tmp_path / "pack", tmp_path)


@pytest.mark.nightly
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_a_rehearsal_runs_every_step_to_its_end(tmp_path):
    draw = {"en": "the dog sees a cat", "fr": "le chien voit un chat"}
    texts = {"europarl_enfr/train": 2000, "europarl_enfr/test_debates": 20}
    texts["newstest_enfr/newstest2013.en-fr"] = 20
    for name, count in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        for language, words in draw.items():
            lines = "".join(f"{words} {number} .\n" for number in range(count))
            file = tmp_path / f"{name}.{language}.gz"
            file.write_bytes(gzip.compress(lines.encode()))
    flags = [f"--data={tmp_path}", f"--output={tmp_path / 'out'}", "--rehearse"]
    flags += ["--updates=60", "--deadline=1200"]
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log = tmp_path / "out" / "gpu.log"
    assert done.returncode == 0, done.stderr + log.read_text()
    lines = written(tmp_path / "out")
    parts = [(each["step"], each["part"]) for each in lines]
    assert [step for step, part in parts if part == "all"] == [*gpu.STEPS]
    found = SimpleNamespace(
        **{
            part: each["found"]
            for (_, part), each in zip(parts, lines, strict=True)
            if "found" in each
        }
    )
    assert found.train["step"] == 60
    assert found.newstest2013["sentences"] == found.test_debates["sentences"] == 20
    assert "Moses tokens" in json.dumps(found.test_debates["every_bleu"])
    assert found.masks["errors"]["cross | XLA"][0] < 0.01
    assert found.base["profile"]["milliseconds"]["others"] > 0
    assert {"ours", "HF compiled"} <= vars(found)["3 sentences"]["forced"][
        "greedy"
    ].keys()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "gpu.jsonl", "gpu.log", "europarl_metrics.jsonl", "newstest2013.fr",
        "test_debates.fr", "europarl_report.html", "europarl_report.json",
    }  # fmt: skip
