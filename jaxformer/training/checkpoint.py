"""Checkpoints: the training state on disk, and parameters read back from it.

A checkpoint is the folder `<directory>/<step>`, which appears complete or not at all,
on a file system that all processes see. Each process writes what its devices hold and
reads for itself; then all agree on whether the checkpoint could be read.
"""

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer import processes
from jaxformer.errors import InputError
from jaxformer.training import storage

logger = logging.getLogger(__name__)


class Checkpoints(AbstractContextManager):
    """The checkpoints of one run; a context manager that finishes the last save."""

    def __init__(
        self, directory: Path, *, keep: int | None, scores: Mapping[int, float]
    ) -> None:
        """Open the folder to save into it, or only to read if `keep` is None.

        The newest `keep` checkpoints stay on disk, and the best one by `scores`, to
        which steps may be added. Raises InputError if the folder cannot be made.
        """
        self._directory = directory.absolute()
        self._keep, self._scores = keep, scores
        self._damaged: set[int] = set()
        self._saving: int | None = None  # the save to wait for
        self._writer = None
        storage.silence()
        if keep is None:
            return
        try:
            self._writer = storage.open_writer(self._directory)
        except OSError as error:
            raise InputError(
                f"the checkpoint folder {directory} cannot be used: "
                f"{storage.reason(error)}; choose another workdir"
            ) from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except InputError:
            if kind is None:  # otherwise the first error is the one to report
                raise
        finally:
            if self._writer is not None:
                self._writer.close()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending, without those found damaged."""
        return sorted(self._all_steps() - self._damaged)

    def latest_step(self) -> int | None:
        """The newest step with a checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """The step of highest score (of equals, the latest); None if none has one."""
        steps = [step for step in self.steps() if step in self._scores]
        return max(steps, key=lambda step: (self._scores[step], step), default=None)

    def save(self, step: int, state: Any) -> None:
        """Save any pytree of arrays in the background; it may be donated afterwards.

        Raises InputError if this save cannot begin or the one before failed.
        """
        self.wait()
        if step in self._damaged:
            self._delete(step)
        self._saving = step
        try:
            storage.save(self._writer, step, state)
        except OSError as error:
            raise self._save_failed(error) from error

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps."""
        self.wait()
        for later in sorted(self._all_steps()):
            if later > step:
                self._delete(later)

    def wait(self) -> None:
        """Block until the save in progress is on disk; then remove what is not kept.

        `steps()` counts that save already. Raises InputError if it failed.
        """
        if self._saving is None:
            return
        try:
            self._writer.wait_until_finished()
            kept = {*self.steps()[-self._keep :], self.best_step()}
            for step in sorted(self._all_steps() - kept):
                self._delete(step)
        except (OSError, ValueError) as error:  # tensorstore raises ValueError
            raise self._save_failed(error) from error
        self._saving = None

    def restore_latest(
        self, abstract: Any, *, before: float = math.inf
    ) -> tuple[Any, int] | None:
        """The newest readable state and its step; None without a step below `before`.

        `abstract` has the state's structure, with ShapeDtypeStructs that have
        shardings. Damaged checkpoints are named in a warning, skipped, and removed
        when the next one is on disk. Raises InputError if no checkpoint can be read,
        or its tree or a shape differs.
        """
        if not any(step < before for step in self._all_steps()):
            return None
        read = functools.partial(storage.read_state, abstract=abstract)
        return next(self._newest_first(read, before=before))

    def restore_parameters(self, step: int | None, *, field: str = "params") -> Any:
        """Read "params", "ema" or another field of a step; None: the newest readable.

        Returns numpy arrays in nested dicts. Raises InputError if there is no such
        checkpoint or field, or it is damaged.
        """
        read = functools.partial(storage.read_field, field=field)
        if step is None:
            return next(self._newest_first(read))[0]
        if step not in self.steps():
            raise InputError(
                f"there is no checkpoint {self._path(step)}; there are steps "
                f"{', '.join(map(str, self.steps())) or 'none'}"
            )
        try:
            return read(self._path(step))
        except storage.DamagedError as error:
            raise InputError(
                f"checkpoint {self._path(step)} is damaged ({error}); use another step"
            ) from error

    def average(self, count: int, *, field: str = "params") -> Any:
        """Average the parameters of the last `count` checkpoints (section 6.1).

        Returns float32 numpy arrays in nested dicts. If there are fewer checkpoints,
        all of them are used; the log says which. Raises InputError if there is none.
        """
        total, used = None, []
        read = functools.partial(storage.read_field, field=field)
        for parameters, step in itertools.islice(self._newest_first(read), count):
            parameters = jax.tree.map(np.float32, parameters)
            total = jax.tree.map(np.add, total, parameters) if used else parameters
            used.append(step)
        level = logging.INFO if len(used) == count else logging.WARNING
        steps = ", ".join(map(str, sorted(used)))
        found = f"averaged {len(used)} checkpoints of the {count} asked for"
        logger.log(level, "%s: steps %s", found, steps)
        return jax.tree.map(lambda leaf: leaf / np.float32(len(used)), total)

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _all_steps(self) -> set[int]:
        if self._writer is not None:
            return set(self._writer.all_steps())
        names = (path.name for path in self._directory.glob("*"))
        return {int(name) for name in names if name.isdecimal()}

    def _delete(self, step: int) -> None:
        self._writer.delete(step)
        self._damaged.discard(step)

    def _save_failed(self, error: Exception) -> InputError:
        step, self._saving = self._saving, None
        self._writer.reload()
        latest = self.latest_step()
        return InputError(
            f"checkpoint {self._path(step)} could not be saved: "
            f"{storage.reason(error)}; make room or make the folder writable and start "
            f"again, from {'the beginning' if latest is None else f'step {latest}'}"
        )

    def _newest_first(
        self, read: Callable[[Path], Any], *, before: float = math.inf
    ) -> Iterator[tuple[Any, int]]:
        """Yield what `read` returns and the step; InputError if nothing is readable."""
        self.wait()  # an incomplete checkpoint would seem damaged
        if not self._all_steps():
            raise InputError(
                f"there is no checkpoint in {self._directory}; train first"
            )
        older = [step for step in self.steps() if step < before]
        for step in reversed(older):
            tree, damage = None, None
            try:
                tree = read(self._path(step))
            except storage.DamagedError as error:
                damage = str(error)
            damage = next(filter(None, processes.gather(damage)), None)
            if damage is None:
                yield tree, step
                continue
            self._damaged.add(step)
            logger.warning(
                "checkpoint %s is damaged (%s): skipped", self._path(step), damage
            )
        if self._damaged.issuperset(older):
            raise InputError(
                f"none of the checkpoints in {self._directory} can be read; "
                "put back a copy, or remove the folder to start afresh"
            )
