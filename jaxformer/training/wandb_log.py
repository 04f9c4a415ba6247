"""Weights & Biases shows the numbers of a run while it trains: `training.trackers`.

Its own environment variables configure it, such as WANDB_MODE=offline.
"""

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.system.errors import InputError

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

PROJECT = "jaxformer"


def require_installed(trackers: Sequence[str]) -> None:
    """Raise InputError if `training.trackers` has wandb and it is not installed."""
    if "wandb" in trackers and importlib.util.find_spec("wandb") is None:
        raise InputError(
            "training.trackers has wandb, which is not installed; run pip install "
            "wandb, or leave it out"
        )


class WandbLog(contextlib.AbstractContextManager):
    """A run of Weights & Biases; a context manager that ends it.

    If it fails, one warning says so, and nothing more is written: it never stops a run.
    """

    def __init__(self, workdir: Path, run: str, config: Mapping[str, object]) -> None:
        """Begin `run` of a workdir, or continue it."""
        self._run: wandb.Run | None = None
        self._try(lambda: self._begin(workdir.absolute(), run, config))

    def _begin(self, workdir: Path, run: str, config: Mapping[str, object]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=workdir.name,
            id=run,
            resume="allow",
            dir=workdir,
            config=dict(config),
            settings=wandb.Settings(silent=True),
        )

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Show numbers by name, measured at `seconds` since 1970."""
        if run := self._run:
            self._try(lambda: run.log(dict(values), step=step))

    def __exit__(self, *_: object) -> None:
        if run := self._run:
            self._try(lambda: run.finish())

    def _try(self, call: Callable[[], object]) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout has the result
                call()
        except Exception as error:
            self._run = None
            why = f"{type(error).__name__}: {error}"
            logger.warning("the tracker wandb failed and is left out: %s", why)
