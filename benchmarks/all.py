"""Measure the figures of the documentation and write them into its pages.

    python benchmarks/all.py [--only=NAME,...] [--runs=runs/figures] [--data=data]
        [--wait=3600] [--again]

Runs the commands of benchmarks/measurements.py and writes the tables that they print to
docs/figures.json, by kind of processor and name, with date, machine and versions. After
each measurement these tables fill the blocks of README.md and docs/*.md:

    <!-- figures: NAME KIND -->
    <!-- end -->

--only= fills the blocks and measures nothing. A measurement is not repeated if its
commands, the machine, its versions and the code are those recorded; a table of trained
models does not depend on the code. So the same command continues an interrupted one.
--again repeats what is recorded. Trainings and the output of commands are in --runs;
--data has multi30k/ and tatoeba_ende/.

Before it measures times, it waits up to --wait seconds until other processes use less
than 0.3 of a core. A measurement is thrown away if they use more on average during it,
or if code or versions change meanwhile. The exit code is 1 if a measurement was thrown
away or a command failed.
"""

import functools
import hashlib
import json
import re
import shlex
import sys
from argparse import Namespace
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import commands, harness
from benchmarks.commands import Unusable
from benchmarks.measurements import MEASUREMENTS, Measurement
from jaxformer.system.errors import InputError
from jaxformer.system.files import write_atomically

ROOT = harness.ROOT
FIGURES = ROOT / "docs" / "figures.json"
PAGES = ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))
FOLDERS = {"runs": Path("runs/figures"), "data": Path("data")}  # by default
# Packages whose versions are in the caption of tables that contain a word.
NAMED = {
    "jax": "", "flax": "Flax", "torch": "PyTorch", "ctranslate2": "CTranslate2",
    "transformers": "HF",
}  # fmt: skip
# The code that figures depend on, and files in it that they do not depend on.
CODE = "jaxformer", "configs", "benchmarks"
EXCEPT = (
    "benchmarks/all.py", "benchmarks/commands.py", "benchmarks/measurements.py",
    "jaxformer/runs/quality.json",  # a measurement writes it
)  # fmt: skip
END = "<!-- end -->"
START = re.compile(r"^<!-- figures: ", re.M)
BLOCK = re.compile(
    r"^<!-- figures: (\S+) (\S+) -->\n(?:(?!<!--).)*?^<!-- end -->$", re.M | re.S
)
TABLE = re.compile(r"(?:^\|.*\|$\n?)+", re.M)

Figures = dict[str, dict[str, Any]]  # records by kind of processor and name


def hash_code() -> str:
    """Return a hash of the files in CODE."""
    found = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            is_code = path.is_file() and "__pycache__" not in path.parts
            if is_code and name not in EXCEPT:
                found.update(f"{name}\0".encode() + path.read_bytes())
    return found.hexdigest()


def read_result(command: str, printed: str) -> dict[str, Any]:
    """Take the tables, as lists of lines, and the outcome of what a command printed."""
    last = printed.rstrip().rpartition("\n")[2]
    outcome = json.loads(last) if last.startswith("{") else {}
    outcome.pop("machine", None)
    tables = [each.splitlines() for each in TABLE.findall(printed)]
    return {"command": command, "tables": tables, "outcome": outcome}


def identify(measurement: Measurement) -> dict[str, Any]:
    """Describe what a record must have for a measurement not to be repeated."""
    machine = harness.machine()
    del machine["load"]
    lines = [*measurement.before, *measurement.commands]
    found = {"commands": lines, "machine": machine}
    return found | ({"code": hash_code()} if measurement.depends_on_code else {})


def measure_one(name: str, measurement: Measurement, options: Namespace) -> dict:
    """Run a measurement; raises Unusable if a command fails or the machine is busy.

    Returns its results, and the cores that others used meanwhile.
    """
    folders = {each: getattr(options, each).absolute() for each in FOLDERS}
    folders["runs"].mkdir(parents=True, exist_ok=True)
    log = folders["runs"] / f"{name}.log"
    words = {each: shlex.quote(str(folder)) for each, folder in folders.items()}
    for command in measurement.before:
        commands.run(command.format(**words), log)
    if measurement.timed:
        commands.wait_until_idle(options.wait)
    since = commands.start_watching()
    results = [
        read_result(command, commands.run(command.format(**words), log))
        for command in measurement.commands
    ]
    used = commands.cores_of_others(since)
    if measurement.timed and used > commands.BUSY:
        raise Unusable(f"thrown away: other processes used {used:.1f} cores")
    return {"cores_of_others": round(used, 2), "results": results}


def render(name: str, kind: str, figures: Figures) -> str:
    """Make the content of a block. Raises InputError for an unknown measurement."""
    if name not in MEASUREMENTS:
        raise InputError(f"there is no measurement {name}, which a page shows")
    if (record := figures.get(kind, {}).get(name)) is None:
        return "Not measured."
    machine, paragraphs = record["machine"], []
    text = json.dumps(record["results"])
    shown = [each for each, word in NAMED.items() if each in machine and word in text]
    versions = [f"{each} {machine[each]}" for each in ("python", *shown)]
    processor = f"{machine['cpu']} ({machine['kind']}), {machine['cores']} cores"
    where = ", ".join(["", record["date"], processor, *versions])
    for result in record["results"]:
        paragraphs.append(f"`{result['command'].format(**FOLDERS)}`{where}:")
        paragraphs += ["\n".join(lines) for lines in result["tables"]]
        where = ""  # that of the first command holds for all
    return "\n\n".join(paragraphs)


def fill(page: str, figures: Figures) -> str:
    """Return the text of a page with the figures in its blocks.

    Raises InputError for a block without an end.
    """
    begun = {found.start() for found in START.finditer(page)}
    if broken := begun - {found.start() for found in BLOCK.finditer(page)}:
        line = page.count("\n", 0, min(broken)) + 1
        raise InputError(
            f"line {line}: this block needs a name, a kind and, at its end, {END}"
        )

    def block(found: re.Match) -> str:
        start, text = found[0].partition("\n")[0], render(found[1], found[2], figures)
        return f"{start}\n\n{text}\n\n{END}"

    return BLOCK.sub(block, page)


def read_figures() -> Figures:
    return json.loads(FIGURES.read_text("utf-8"))


def fill_pages() -> None:
    """Fill the blocks of all pages from the recorded figures."""
    figures = read_figures()
    for path in PAGES:
        text = path.read_text("utf-8")
        try:
            filled = fill(text, figures)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if filled != text:
            write_atomically(path, filled)


def record(name: str, found: dict[str, Any]) -> None:
    """Write a measurement to the file and the pages."""
    figures = read_figures()  # again: another process may have written to it
    figures.setdefault(found["machine"]["kind"], {})[name] = found
    text = json.dumps(figures, indent=1, ensure_ascii=False, sort_keys=True)
    write_atomically(FIGURES, f"{text}\n")
    fill_pages()


def measure(options: Namespace) -> dict:
    names = [*filter(None, options.only)]
    if unknown := {*names} - {*MEASUREMENTS}:
        raise InputError(
            f"there is no measurement {', '.join(sorted(unknown))}; --only takes "
            + ", ".join(MEASUREMENTS)
        )
    fill_pages()
    found: dict[str, Any] = {"measured": [], "recorded": [], "not_measured": {}}
    for name in names:
        identity = identify(MEASUREMENTS[name])
        known = read_figures().get(identity["machine"]["kind"], {}).get(name, {})
        if identity.items() <= known.items() and not options.again:
            found["recorded"].append(name)
            continue
        print(f"{name}: measuring", file=sys.stderr)
        try:
            made = measure_one(name, MEASUREMENTS[name], options)
            if identify(MEASUREMENTS[name]) != identity:
                raise Unusable("thrown away: code or versions changed during it")
        except Unusable as error:
            found["not_measured"][name] = str(error)
            print(f"{name}: {error}", file=sys.stderr)
            continue
        record(name, identity | {"date": date.today().isoformat()} | made)
        found["measured"].append(name)
    if missing := ", ".join(found["not_measured"]):
        print(f"not measured: {missing}; run the command again", file=sys.stderr)
    return found | {"holds": not missing}


main = functools.partial(
    harness.run, __doc__, measure, only=list(MEASUREMENTS), **FOLDERS, wait=3600.0,
    again=False,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
