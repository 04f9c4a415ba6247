"""Flags, text as lines, and what a run has written."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxformer.runs.workdir import Workdir
from jaxformer.training.log import read_metrics


def text_of(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def pair_flags(folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Write sentence pairs to files; returns the flags that name them."""
    sides = dict(zip(("source", "reference"), zip(*pairs, strict=True), strict=True))
    for name, lines in sides.items():
        (folder / name).write_text(text_of(lines))
    return [f"--{name}={folder / name}" for name in sides]


def config_flags(section: str, **values: Any) -> list[str]:
    return [f"--config.{section}.{key}={value}" for key, value in values.items()]


def page_data(page: Path) -> dict:
    """The data in a page of attention."""
    html = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def mtimes(folder: Path) -> dict[Path, int]:
    """When each path below a folder changed, but for the files that name the owner."""
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    return {path: path.stat().st_mtime_ns for path in paths}


def metrics(workdir: Path, kind: str) -> list[dict]:
    """The lines of one kind in metrics.jsonl."""
    return [line for line in read_metrics(workdir) if line["kind"] == kind]


def losses(workdir: Path) -> dict[int, float]:
    """The training loss by step."""
    return {line["step"]: line["loss"] for line in metrics(workdir, "train")}


def saved_steps(workdir: Path) -> list[int]:
    """The steps of all complete checkpoints."""
    names = [path.name for path in (workdir / "checkpoints").glob("[0-9]*")]
    return sorted(int(name) for name in names if name.isdecimal())


def newest_step(workdir: Path) -> int:
    return max(saved_steps(workdir), default=0)


def last_state(workdir: Path, *fields: str) -> list[Any]:
    """Fields of the newest checkpoint, as numpy arrays."""
    folder = Workdir(workdir)
    with folder.open_checkpoints(folder.recorded()) as checkpoints:
        return [checkpoints.restore_parameters(None, field=field) for field in fields]
