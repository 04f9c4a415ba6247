"""Checkpoints: the training state on disk, and parameters read back from it.

The training loop saves and resumes through `Checkpoints`; translation, evaluation and
export read parameters with it, of one checkpoint or averaged over the last few
(section 6.1). What stays, what is used and what is said is decided here; files are
written and read in `jaxformer.training.storage`.

A checkpoint is the folder `<directory>/<step>`, which appears complete or not at all.
It holds `state`, the pytree given to `save`, addressed by the names of its fields and
parameters ("params/encoder/layer_0/..."). Arrays are stored whole, whatever devices
they were spread over, so they can be read back onto any others.

Several processes write one checkpoint together, each what its devices hold, and read
each for itself; whether a checkpoint could be read is then agreed, so that no process
goes on from another one than the rest. They need a file system that all of them see.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer import processes
from jaxformer.errors import InputError
from jaxformer.training import storage

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run; a context manager that finishes the last save."""

    def __init__(
        self, directory: str | Path, *, keep: int | None, scores: Mapping[int, float]
    ) -> None:
        """Open the folder to save into it, or only to read if `keep` is None.

        `keep` newest checkpoints stay on disk, and the best one by `scores`, of steps,
        in addition; more scores may be added to it as they become known. Raises
        InputError if the folder has to be made and cannot be.
        """
        url_or_path = str(directory)  # gs://... is no path of this machine
        if "://" not in url_or_path:
            url_or_path = str(Path(directory).absolute())
        self._keep = keep
        self._scores = scores
        self._damaged: set[int] = set()
        self._saving: int | None = None
        self._writer = None
        try:
            if keep is not None:
                self._writer = storage.open_writer(url_or_path, self._steps_to_keep)
            self._reader = storage.open_reader(url_or_path)
        except OSError as error:
            raise InputError(
                f"the checkpoint folder {directory} cannot be used: "
                f"{storage.reason(error)}; choose another --workdir"
            ) from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except InputError:
            if kind is None:  # otherwise the first error is the one to tell
                raise
        finally:
            self._reader.close()
            if self._writer is not None:
                self._writer.close()

    # --- what there is ---------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending, without those found damaged."""
        return sorted(set(self._all_steps()) - self._damaged)

    def latest_step(self) -> int | None:
        """The newest step with a checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """The step of highest score (of equals, the latest); None if none has one."""
        return self._best_of(self.steps())

    # --- saving ----------------------------------------------------------------------

    def save(self, step: int, state: Any) -> None:
        """Save any pytree of arrays in the background.

        Returns as soon as the arrays are copied, so `state` may be donated afterwards.
        A step that this run has already saved is left as it is. Raises InputError if
        this save cannot be started or the one before failed; older checkpoints are then
        untouched.
        """
        self.wait()
        if step in self._damaged:
            self._writer.delete(step)
            self._damaged.discard(step)
        if step in self.steps():
            return
        self._saving = step
        try:
            storage.save(self._writer, step, state)
        except OSError as error:
            raise self._save_failed(error) from error

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, of a way that is not gone on."""
        self.wait()
        for later in [each for each in self._all_steps() if each > step]:
            self._writer.delete(later)
            self._damaged.discard(later)

    def wait(self) -> None:
        """Block until the save in progress is on disk; raises InputError if it failed.

        `steps()` counts that save already; after this returns it is complete.
        """
        if self._writer is None:
            return
        try:
            self._writer.wait_until_finished()
        except (OSError, ValueError) as error:  # tensorstore raises ValueError
            raise self._save_failed(error) from error

    # --- reading ---------------------------------------------------------------------

    def restore(self, step: int, abstract: Any) -> Any:
        """The state of one step, onto the shardings of `abstract`.

        `abstract` has the state's structure with ShapeDtypeStructs as leaves; a leaf
        without a sharding comes back as a numpy array. Raises InputError if there is
        no such checkpoint, it is damaged, or its tree or shapes are not those asked
        for.
        """
        return self._restore(step, None, abstract)

    def restore_latest(self, abstract: Any) -> tuple[Any, int] | None:
        """The newest readable state and its step, or None without any checkpoint.

        Damaged checkpoints are named in a warning and skipped; they are removed when
        the next one is safely on disk. Otherwise as `restore`. Raises InputError if
        there are checkpoints but none can be read: starting afresh would be a surprise.
        """
        if not self._all_steps():
            return None
        return next(self._newest_first(None, abstract))

    def restore_before(self, step: int, abstract: Any) -> tuple[Any, int] | None:
        """As `restore_latest`, of the checkpoints older than `step`."""
        if not any(older < step for older in self.steps()):
            return None
        return next(self._newest_first(None, abstract, before=step))

    def restore_parameters(
        self, step: int | None, *, abstract: Any = None, field: str = "params"
    ) -> Any:
        """One field of a saved state, "params" or "ema"; step None: newest readable.

        Without `abstract`, numpy arrays in nested dicts with the saved names, whatever
        devices wrote them; with it, and for the errors, as `restore`.
        """
        if step is None:
            return next(self._newest_first(field, abstract))[0]
        return self._restore(step, field, abstract)

    def average(self, count: int, *, field: str = "params") -> Any:
        """The mean of the last `count` checkpoints' parameters (section 6.1).

        Computed and returned in float32, as numpy arrays in nested dicts. If there are
        fewer checkpoints all of them are used; the log says which. Raises InputError
        if there is none.
        """
        total, used = None, []
        for parameters, step in self._newest_first(field, None):
            parameters = jax.tree.map(np.float32, parameters)
            total = jax.tree.map(np.add, total, parameters) if used else parameters
            used.append(step)
            if len(used) == count:
                break
        logger.log(
            logging.INFO if len(used) == count else logging.WARNING,
            "averaged %d checkpoints of the %d asked for: steps %s",
            len(used),
            count,
            ", ".join(map(str, sorted(used))),
        )
        return jax.tree.map(lambda leaf: leaf / np.float32(len(used)), total)

    # --- behind the doors ------------------------------------------------------------

    def _path(self, step: int) -> Any:
        return self._reader.directory / str(step)

    def _all_steps(self) -> list[int]:
        return list((self._writer or self._reader).all_steps())

    def _best_of(self, steps: Sequence[int]) -> int | None:
        scored = [(self._scores[step], step) for step in steps if step in self._scores]
        return max(scored)[1] if scored else None

    def _steps_to_keep(self, steps: Sequence[int]) -> set[int | None]:
        sound = sorted(set(steps) - self._damaged)
        return {*sound[-self._keep :], self._best_of(sound)}

    def _save_failed(self, error: Exception) -> InputError:
        self._writer.reload()  # it has already forgotten what it meant to delete
        latest = self.latest_step()
        start = "the beginning" if latest is None else f"step {latest}"
        return InputError(
            f"checkpoint {self._path(self._saving)} could not be saved: "
            f"{storage.reason(error)}; make room or make the folder writable and start "
            f"again, from {start}"
        )

    def _newest_first(
        self, field: str | None, abstract: Any, *, before: float = math.inf
    ) -> Iterator[tuple[Any, int]]:
        """Yield (tree, step) of readable checkpoints; InputError if there is none."""
        if not self._all_steps():
            raise InputError(
                f"there is no checkpoint in {self._reader.directory}; train first"
            )
        older = [step for step in self.steps() if step < before]
        for step in reversed(older):
            tree, damage = None, None
            try:
                tree = self._read(step, field, abstract)
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
                f"none of the checkpoints in {self._reader.directory} can be read; "
                "put back a copy, or remove the folder to start afresh"
            )

    def _restore(self, step: int, field: str | None, abstract: Any) -> Any:
        if step not in self.steps():
            raise InputError(
                f"there is no checkpoint {self._path(step)}; there are steps "
                f"{', '.join(map(str, self.steps())) or 'none'}"
            )
        try:
            return self._read(step, field, abstract)
        except storage.DamagedError as error:
            raise InputError(
                f"checkpoint {self._path(step)} is damaged ({error}); use another step"
            ) from error

    def _read(self, step: int, field: str | None, abstract: Any) -> Any:
        self.wait()  # a checkpoint half written would look damaged
        return storage.read(self._reader, step, field, abstract)
