"""Programs that show the numbers of a run while it trains: `training.trackers`.

A tracker that fails is named in one warning and left out from then on: it never stops a
run. Its own environment variables configure it, such as WANDB_MODE=offline,
MLFLOW_TRACKING_URI and TRACKIO_DIR.
"""

import contextlib
import importlib.util
import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxformer.system.errors import InputError
from jaxformer.system.files import write_atomically

logger = logging.getLogger(__name__)

PROJECT = "jaxformer"
IDS_FILE = "trackers.json"  # of the workdir: the run's name in each tracker


class Tracker(Protocol):
    """One program that shows numbers."""

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Show numbers by name, measured at `seconds` since 1970."""

    def close(self) -> None:
        """Finish what is written."""


class Wandb:
    """Weights & Biases."""

    def __init__(self, workdir: Path, config: Mapping[str, Any], run: str) -> None:
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
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """MLflow; without MLFLOW_TRACKING_URI in WORKDIR/mlflow.db."""

    def __init__(self, workdir: Path, config: Mapping[str, Any], run: str) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        own = f"sqlite:///{workdir / 'mlflow.db'}"
        uri = os.environ.get("MLFLOW_TRACKING_URI", own)
        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = (
            found.experiment_id if found else self._client.create_experiment(name)
        )
        mark = f"tags.jaxformer = '{run}'"
        runs = self._client.search_runs([experiment], mark) or [
            self._client.create_run(
                experiment, tags={PROJECT: run}, run_name=workdir.name
            )
        ]
        self._id = runs[0].info.run_id
        self._client.update_run(self._id, status="RUNNING")
        known = self._client.get_run(self._id).data.params
        flat = {
            f"{section}.{key}": str(value)[:6000]
            for section, keys in config.items()
            for key, value in keys.items()
        }
        new = [Param(*item) for item in flat.items() if item[0] not in known]
        for begin in range(0, len(new), 100):  # of a call at most
            self._client.log_batch(self._id, params=new[begin : begin + 100])
        for name in known.keys() & flat.keys():
            if known[name] != flat[name]:  # MLflow lets no parameter change
                self._client.set_tag(self._id, name, flat[name])

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        at = round(1000 * seconds)
        metrics = [self._metric(name, x, at, step) for name, x in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Trackio, on this machine."""

    def __init__(self, workdir: Path, config: Mapping[str, Any], run: str) -> None:
        import trackio

        self._module = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{workdir.name}-{run[:8]}",
            config=dict(config),
            resume="allow",
        )

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        self._module.finish()


KINDS = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


def require_installed(names: Sequence[str]) -> None:
    """Raise InputError for a tracker whose package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise InputError(
                f"training.trackers has {name}, which is not installed; run pip "
                f"install {name}, or leave it out"
            )


class Trackers(contextlib.ExitStack):
    """The trackers of a run; a context manager that closes them."""

    def __init__(
        self, names: Sequence[str], workdir: Path, config: Mapping[str, Any]
    ) -> None:
        """Open trackers by name, for a run with `config`."""
        super().__init__()
        self._open: dict[str, Tracker] = {}
        runs = self._runs(workdir, names)
        for name in names:
            with self._surviving(name):
                self._open[name] = KINDS[name](workdir.absolute(), config, runs[name])
                self.callback(self._close, name)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Show numbers in all trackers."""
        for name in [*self._open]:
            with self._surviving(name):
                self._open[name].write(step, seconds, values)

    def _close(self, name: str) -> None:
        if name in self._open:
            with self._surviving(name):
                self._open[name].close()

    @contextlib.contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout has the result
                yield
        except Exception as error:
            self._open.pop(name, None)
            logger.warning("the tracker %s failed and is left out: %r", name, error)

    @staticmethod
    def _runs(workdir: Path, names: Sequence[str]) -> dict[str, str]:
        """Read the run's names in trackers, and make those that are missing."""
        if not names:
            return {}
        file, known = workdir / IDS_FILE, {}
        with contextlib.suppress(OSError, ValueError, TypeError):  # damaged: new names
            known = dict(json.loads(file.read_bytes()))
        runs = {**{name: uuid.uuid4().hex for name in names}, **known}
        if runs != known:
            write_atomically(file, (json.dumps(runs) + "\n").encode())
        return runs
