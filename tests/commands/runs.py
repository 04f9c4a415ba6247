"""What a run has written, and text as lines."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import read_metrics


def text_of(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


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
    with Checkpoints(workdir / "checkpoints", keep=None, scores={}) as checkpoints:
        return [checkpoints.restore_parameters(None, field=field) for field in fields]
