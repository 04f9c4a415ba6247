"""Figures of the documentation: what is measured again, and what is thrown away."""

import functools
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from benchmarks import all as script
from benchmarks import commands, harness
from benchmarks.measurements import MEASUREMENTS, Measurement
from jaxformer.commands import command_line
from jaxformer.runs.config_files import read_config_file

ROOT = harness.ROOT
SECONDS_OF_OTHERS = commands.seconds_of_others  # tests replace it
BURN = "import time\nwhile time.process_time() < {}: pass\n"
PRINTS = 'printf \'a line\\n| a |\\n|---|\\n| 1 |\\n\\n{{"n": 1, "machine": 2}}\\n\''
MACHINE = {
    "cpu": "AMD EPYC", "kind": "AVX2", "cores": 2, "python": "3.12.1", "jax": "0.10.2",
}  # fmt: skip
BEGIN, END = "<!-- figures: timed AVX2 -->", "<!-- end -->"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two measurements, a page with a block, and an idle machine."""
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    figures.write_text("{}\n")
    page.write_text(f"# Speed\n\n{BEGIN}\n{END}\n\nText.\n\n<!-- rows -->\n{END}\n")
    count = "echo again >> {runs}/"
    made = {
        "timed": Measurement(before=[count + "timed"], commands=[PRINTS]),
        "trained": Measurement(
            before=[count + "trained"], commands=[PRINTS], timed=False
        ),
    }
    place = SimpleNamespace(
        figures=figures, page=page, runs=tmp_path / "with space", made=made,
        machine=MACHINE.copy(),
    )  # fmt: skip
    loads = iter(range(1000))
    for module, name, value in (
        (script, "MEASUREMENTS", made), (script, "FIGURES", figures),
        (script, "PAGES", [page]), (script, "hash_code", lambda: "first"),
        (harness, "machine", lambda: place.machine | {"load": next(loads)}),
        (commands, "IDLE_SECONDS", 0.01), (commands, "seconds_of_others", lambda: 0.0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    place.run = lambda *flags: script.main(
        [f"--runs={place.runs}", "--only=timed,trained", *flags]
    )
    return place


def counts(place) -> list[int]:
    return [
        len((place.runs / name).read_text().splitlines())
        for name in ("timed", "trained")
    ]


def test_a_measurement_is_repeated_only_if_something_has_changed(place, monkeypatch):
    """Other code repeats times, and does not repeat trainings."""
    found = []
    for change in (
        lambda: None,
        lambda: None,
        lambda: monkeypatch.setattr(script, "hash_code", lambda: "second"),
        lambda: place.machine.update(jax="0.11.0"),
        lambda: place.made.update(
            timed=Measurement(before=place.made["timed"].before, commands=["true"])
        ),
    ):
        change()
        assert place.run() == 0
        found.append(counts(place))
    assert found == [[1, 1], [1, 1], [2, 1], [3, 2], [4, 2]]
    assert place.run("--again", "--only=trained") == 0
    assert counts(place) == [4, 3]


def test_blocks_of_pages_have_the_recorded_tables(place):
    before = place.page.read_text()
    assert place.run() == 0
    found = json.loads(place.figures.read_text())["AVX2"]["timed"]
    assert found["results"][0]["outcome"] == {"n": 1}
    assert (found["cores_of_others"], found["code"]) == (0, "first")
    caption = f"{found['date']}, AMD EPYC (AVX2), 2 cores, python 3.12.1, jax 0.10.2:"
    command = PRINTS.format()
    shown = f"{BEGIN}\n\n`{command}`, {caption}\n\n| a |\n|---|\n| 1 |\n\n{END}"
    assert place.page.read_text() == before.replace(f"{BEGIN}\n{END}", shown)
    place.page.write_text(before)
    assert place.run("--only=") == 0  # writes pages alone
    assert shown in place.page.read_text()
    assert counts(place) == [1, 1]


def test_a_block_without_a_record_says_so_and_one_of_no_measurement_is_refused(
    place, capsys
):
    assert place.run("--only=") == 0
    assert f"{BEGIN}\n\nNot measured.\n\n{END}" in place.page.read_text()
    place.page.write_text(place.page.read_text().replace("timed", "other"))
    assert place.run("--only=") == 2
    assert "there is no measurement other" in capsys.readouterr().err


def test_a_block_without_an_end_is_refused_and_deletes_nothing(place, capsys):
    text = place.page.read_text().replace(END, "", 1)
    place.page.write_text(text)
    assert place.run("--only=") == 2
    assert f"{place.page}: line 3: this block needs a name" in capsys.readouterr().err
    assert place.page.read_text() == text


def test_an_unknown_name_is_one_sentence_and_exit_code_2(place, capsys):
    assert place.run("--only=timed,fast") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("there is no measurement fast; --only takes timed, trained")
    assert not place.runs.exists()


def test_times_are_thrown_away_if_another_process_works(place, monkeypatch, capsys):
    """The other process begins after the machine was found idle."""
    command = f"{sys.executable} -c 'import time; time.sleep(0.6)'"
    place.made["timed"] = Measurement(commands=[command])
    place.made["trained"] = Measurement(commands=[command], timed=False)
    monkeypatch.setattr(commands, "seconds_of_others", SECONDS_OF_OTHERS)
    monkeypatch.setattr(commands, "wait_until_idle", lambda limit: None)
    with subprocess.Popen([sys.executable, "-c", BURN.format(60)]) as other:
        assert place.run() == 1
        other.kill()
    assert "timed: thrown away: other processes used" in capsys.readouterr().err
    (machine,) = json.loads(place.figures.read_text()).values()
    assert machine.keys() == {"trained"}
    assert machine["trained"]["cores_of_others"] > commands.BUSY


def test_figures_of_code_that_changes_meanwhile_are_thrown_away(
    place, monkeypatch, capsys
):
    """The second hash is read after the measurement."""
    hashes = iter(["first", "second", "third"])
    monkeypatch.setattr(script, "hash_code", lambda: next(hashes))
    assert place.run("--only=timed") == 1
    assert "timed: thrown away: code or versions changed" in capsys.readouterr().err
    assert json.loads(place.figures.read_text()) == {}


def test_it_waits_for_an_idle_machine_until_the_limit(place, monkeypatch, capsys):
    monkeypatch.setattr(commands, "seconds_of_others", iter(range(10**6)).__next__)
    assert place.run("--wait=0.05") == 1
    printed = capsys.readouterr()
    assert printed.err.count("waiting: other processes use") == 1
    assert re.search(r"^timed: other processes use [\d.]+ cores$", printed.err, re.M)
    assert printed.err.splitlines()[-1] == "not measured: timed; run the command again"
    assert json.loads(printed.out.splitlines()[-1])["measured"] == ["trained"]


def test_a_failing_command_is_named_with_its_last_line(place, capsys):
    fails = "echo first; echo second >&2; exit 3"
    place.made["timed"] = Measurement(before=[fails], commands=["touch {runs}/made"])
    assert place.run() == 1
    line = f"timed: {fails}: exit code 3, second ({place.runs}/timed.log)"
    assert line in capsys.readouterr().err.splitlines()
    assert not (place.runs / "made").exists()
    assert (place.runs / "timed.log").read_text() == "second\nfirst\n"
    assert json.loads(place.figures.read_text())["AVX2"].keys() == {"trained"}


def test_the_time_of_orphans_is_the_measurements_and_they_end(tmp_path, monkeypatch):
    """The command ends without waiting for its child, as a killed parent does."""
    (tmp_path / "child.py").write_text(
        f"import os, time\n{BURN.format(0.4)}print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "parent.py").write_text(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, 'child.py'], cwd=sys.argv[1],\n"
        "    stdout=subprocess.PIPE)\n"
        "print(child.stdout.readline().decode())\nsys.stdout.flush()\nos._exit(0)\n"
    )
    none = dict.fromkeys(("user", "nice", "system", "irq", "softirq"), 0.0)
    monkeypatch.setattr(commands.psutil, "cpu_times", lambda: SimpleNamespace(**none))
    before, start = commands.seconds_of_others(), time.monotonic()
    printed = commands.run(f"python {tmp_path}/parent.py {tmp_path}", tmp_path / "log")
    assert before - commands.seconds_of_others() > 0.4
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(printed), 0)


def test_the_hash_of_the_code_is_that_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    uncounted = (
        "benchmarks/all.py",
        "configs/__pycache__/a",
        "jaxformer/runs/quality.json",
    )
    for name in ("jaxformer/a.py", *uncounted):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = script.hash_code()
    for name in uncounted:
        (tmp_path / name).write_text("2")
    assert script.hash_code() == first
    (tmp_path / "jaxformer/a.py").write_text("2")
    assert script.hash_code() != first


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_commands_have_flags_and_keys_that_exist(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    values = read_config_file("demo")
    measurement = MEASUREMENTS[name]
    for command in dict.fromkeys([*measurement.before, *measurement.commands]):
        filled = command.format(runs=tmp_path, data="data").partition(" > ")[0]
        program, *words = shlex.split(filled)
        if program == "jaxformer":
            command_line.parse(words).flags["config"].resolve(values)
            continue
        module = importlib.import_module(words[0].replace("/", ".").removesuffix(".py"))
        monkeypatch.setattr(harness, "machine", dict)
        if isinstance(module.main, functools.partial):
            given = module.main.args[0], lambda options: {}, words[1:]
            assert module.main.func(*given, **module.main.keywords) == 0
        else:
            module.parser().parse_args(words[1:])
