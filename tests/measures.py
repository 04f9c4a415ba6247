"""Measure how large the house is: `python -m tests.measures` prints a table.

`tests/test_architecture.py` holds the budgets. With `--run` a demo of a few updates is
trained and a sentence translated, and the files whose functions run are counted.
"""

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_EVENING = (
    "README.md", "docs/built.md", "jaxformer/batch.py",
    "jaxformer/models/transformer/transformer.py", "jaxformer/models/attention.py",
    "jaxformer/models/layers.py", "jaxformer/training/loss.py",
    "jaxformer/training/step.py", "jaxformer/training/loop.py",
    "jaxformer/runs/trainer.py", "jaxformer/decoding/search.py",
    "jaxformer/decoding/translator.py",
)  # fmt: skip


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def sources() -> list[Path]:
    """The package's files; configs/ is a link in it, and counted by itself."""
    found = sorted((ROOT / "jaxformer").rglob("*.py"))
    return [path for path in found if "configs" not in path.parts]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def rooms_and_arrows() -> tuple[int, int]:
    """Count the folders of the package, and the pairs of which one imports another."""
    folder_of = {module_of(path): path.parent for path in sources()}
    arrows = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                known = [n for n in [*names, node.module] if n in folder_of]
                arrows |= {(path.parent, folder_of[name]) for name in known}
    arrows = {(a, b) for a, b in arrows if a != b}
    return len({*folder_of.values()}), len(arrows)


def importers_of(module: str) -> int:
    """Count the files outside of its folder that import a module or a folder."""
    own, pattern = ROOT / module.replace(".", "/"), re.escape(module)
    named = re.compile(rf"^\s*(from|import) {pattern}\b", re.M)
    parent, _, last = module.rpartition(".")
    listed = re.compile(rf"^\s*from {re.escape(parent)} import .*\b{last}\b", re.M)
    texts = {path: path.read_text("utf-8") for path in sources()}
    return sum(
        bool(named.search(text) or listed.search(text))
        for path, text in texts.items()
        if own not in path.parents and path != own.with_suffix(".py")
    )


def count_any() -> int:
    """Count the annotations that are `Any`."""
    found = 0
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            kind = getattr(node, "annotation", None) or getattr(node, "returns", None)
            found += isinstance(kind, ast.Name) and kind.id == "Any"
    return found


def count_keys() -> int:
    from jaxformer.config.sections import Config
    from jaxformer.models.architectures import ARCHITECTURES

    kinds = [each.type for each in fields(Config) if each.name != "model"]
    kinds += [kind for kind, _ in ARCHITECTURES.values()]
    return sum(len(fields(kind)) for kind in kinds)


def static() -> dict[str, object]:
    """Return what is counted without running anything."""
    from jaxformer.commands.flags import FLAGS

    loose = [path for path in (ROOT / "jaxformer").iterdir() if path.is_file()]
    rooms, arrows = rooms_and_arrows()
    return {
        "loose files at the top": len(loose),
        "their lines": lines_of(loose),
        "rooms": rooms,
        "arrows between rooms": arrows,
        "lines of the package": lines_of(sources()),
        "lines of tests": lines_of((ROOT / "tests").rglob("*.py")),
        "lines of benchmarks": lines_of((ROOT / "benchmarks").rglob("*.py")),
        "lines of docs": lines_of((ROOT / "docs").glob("*.md")),
        "files that know of object stores": importers_of("jaxformer.remote"),
        "files that know of ranks": importers_of("jaxformer.system.processes"),
        "annotations with Any": count_any(),
        "config keys": count_keys(),
        "flags": len(FLAGS),
        "lines of the first evening": lines_of(ROOT / name for name in FIRST_EVENING),
    }


TRACE = """
import inspect, sys, threading

root, files = {root!r}, set()

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root):
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function
            files.add(code.co_filename)

# What importing runs does not count.
from jaxformer.commands import train, translate
from jaxformer.main import main

threading.setprofile(note)
sys.setprofile(note)
code = main({argv!r})
sys.setprofile(None)
print(len(files), code, file=sys.stderr)
"""


def files_run(*argv: str, stdin: str = "") -> int:
    """Count the files of which a command runs a function."""
    root = str(ROOT / "jaxformer")
    program = TRACE.format(root=root, argv=["jaxformer", *argv])
    done = subprocess.run(
        [sys.executable, "-c", program], input=stdin, capture_output=True, text=True,
        cwd=ROOT, check=True,
    )  # fmt: skip
    count, code = map(int, done.stderr.splitlines()[-1].split())
    assert code == 0, done.stderr
    return count


def dynamic() -> dict[str, int]:
    """Return the files that run for twelve updates, and for a translated sentence."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = f"--workdir={folder}"
        values = "steps=12", "save_every=12", "eval_every=12", "log_every=12"
        short = [f"--config.training.{each}" for each in values]
        few = "--config.data.train=2000", "--config.data.vocab_size=500"
        updates = files_run("--config=configs/demo.py", workdir, *short, *few)
        sentence = files_run("--mode=translate", workdir, stdin="The men sleep.\n")
    return {"files run by 12 updates": updates, "files run by a sentence": sentence}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true")
    measured = static()
    if parser.parse_args().run:
        measured |= dynamic()
    for name, value in measured.items():
        print(f"| {name} | {value:,} |")
