"""Checkpoints by orbax: the training state on disk, and parameters read back from it.

A checkpoint is the folder `<directory>/<step>` with one item, `state`. It appears
complete or not at all, on a file system that all processes see. Each process writes
what its devices hold and reads for itself; then all agree on whether it could be read.
"""

import contextlib
import functools
import itertools
import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxformer import processes
from jaxformer.errors import InputError

logger = logging.getLogger(__name__)


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one run; a context manager that finishes the last save."""

    def __init__(
        self, directory: Path, *, keep: int | None, scores: dict[int, float]
    ) -> None:
        """Open the folder to save into it, or only to read if `keep` is None.

        The newest `keep` checkpoints stay on disk, and the best one by `scores`, to
        which steps may be added. Raises InputError if the folder cannot be made.
        """
        self._directory = directory.absolute()
        self._keep, self.scores = keep, scores
        self._damaged: set[int] = set()
        self._saving: int | None = None  # the save to wait for
        self._manager = None
        _silence()
        if keep is None:
            return
        made = ocp.CheckpointManagerOptions(create=True, cleanup_tmp_directories=True)
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=made)
        except OSError as error:
            raise InputError(
                f"the checkpoint folder {directory} cannot be used: {_reason(error)}; "
                "choose another workdir"
            ) from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except InputError:
            if kind is None:  # otherwise the first error is the one to report
                raise
        finally:
            if self._manager is not None:
                self._manager.close()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending, without those found damaged."""
        return sorted(self._all_steps() - self._damaged)

    def latest_step(self) -> int | None:
        """The newest step with a checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """The step of highest score (of equals, the latest); None if none has one."""
        steps = [step for step in self.steps() if step in self.scores]
        return max(steps, key=lambda step: (self.scores[step], step), default=None)

    def save(self, step: int, state: Any) -> None:
        """Save any pytree of arrays in the background; it may be donated afterwards.

        Raises InputError if this save cannot begin or the one before failed.
        """
        self.wait()
        self._delete(self._damaged & {step})
        self._saving = step
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(state))
        with self._explain_failure(OSError):
            self._manager.save(step, args=items, force=True)

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps."""
        self.wait()
        self._delete({later for later in self._all_steps() if later > step})

    def wait(self) -> None:
        """Block until the save in progress is on disk; then remove what is not kept.

        `steps()` counts that save already. Raises InputError if it failed.
        """
        if self._saving is None:
            return
        with self._explain_failure(OSError, ValueError):  # of tensorstore
            self._manager.wait_until_finished()
            kept = {*self.steps()[-self._keep :], self.best_step()}
            self._delete(self._all_steps() - kept)
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
        return next(self._newest_first(before, abstract=abstract))

    def restore_parameters(self, step: int | None, *, field: str = "params") -> Any:
        """Read "params", "ema" or another field of a step; None: the newest readable.

        Returns numpy arrays in nested dicts. Raises InputError if there is no such
        checkpoint or field, or it is damaged.
        """
        if step is None:
            return next(self._newest_first(field=field))[0]
        path = self._directory / str(step)
        if step not in self.steps():
            raise InputError(
                f"there is no checkpoint {path}; there are steps "
                f"{', '.join(map(str, self.steps())) or 'none'}"
            )
        parameters, damage = _read(path, field=field)
        if damage:
            raise InputError(
                f"checkpoint {path} is damaged ({damage}); use another step"
            )
        return parameters

    def average(self, count: int, *, field: str = "params") -> Any:
        """Average the parameters of the last `count` checkpoints (section 6.1).

        Returns float32 numpy arrays in nested dicts. If there are fewer checkpoints,
        all of them are used; the log says which. Raises InputError if there is none.
        """
        total, used = None, []
        newest = itertools.islice(self._newest_first(field=field), count)
        for parameters, step in newest:
            parameters = jax.tree.map(np.float32, parameters)
            total = jax.tree.map(np.add, total, parameters) if used else parameters
            used.append(step)
        level = logging.INFO if len(used) == count else logging.WARNING
        steps = ", ".join(map(str, sorted(used)))
        found = f"averaged {len(used)} of the {count} checkpoints asked for"
        logger.log(level, "%s: steps %s", found, steps)
        return jax.tree.map(lambda leaf: leaf / np.float32(len(used)), total)

    def _all_steps(self) -> set[int]:
        if self._manager is not None:
            return set(self._manager.all_steps())
        names = (path.name for path in self._directory.glob("*"))
        return {int(name) for name in names if name.isdecimal()}

    def _delete(self, steps: set[int]) -> None:
        for step in sorted(steps):
            self._manager.delete(step)
        self._damaged -= steps

    @contextlib.contextmanager
    def _explain_failure(self, *kinds: type[Exception]) -> Iterator[None]:
        """Raise InputError if the save in progress fails within the block."""
        try:
            yield
        except kinds as error:
            step, self._saving = self._saving, None
            latest = self.latest_step()
            raise InputError(
                f"checkpoint {self._directory / str(step)} could not be saved: "
                f"{_reason(error)}; make room or make the folder writable and start "
                f"again, from {'the beginning' if latest is None else f'step {latest}'}"
            ) from error

    def _newest_first(
        self, before: float = math.inf, **wanted: Any
    ) -> Iterator[tuple[Any, int]]:
        """Yield what `_read` finds, and the step; InputError if nothing is readable."""
        self.wait()  # an incomplete checkpoint would seem damaged
        if not self._all_steps():
            raise InputError(
                f"there is no checkpoint in {self._directory}; train first"
            )
        older = [step for step in self.steps() if step < before]
        for step in reversed(older):
            tree, damage = _read(path := self._directory / str(step), **wanted)
            if damage := max(processes.gather(damage)):  # of any process
                self._damaged.add(step)
                logger.warning("checkpoint %s is damaged (%s): skipped", path, damage)
            else:
                yield tree, step
        if self._damaged.issuperset(older):
            raise InputError(
                f"none of the checkpoints in {self._directory} can be read; "
                "put back a copy, or remove the folder to start afresh"
            )


def _read(path: Path, *, abstract: Any = None, field: str = "") -> tuple[Any, str]:
    """Read the state at `path` onto the shardings of `abstract`, or a field as numpy.

    Returns it with "", or None and why files cannot be read: truncated, overwritten or
    missing ones make the JSON parser and tensorstore raise ValueError, a missing item
    KeyError, and orbax may wrap any of them in a bare Exception. Other errors, such as
    a lack of memory, are no damage. Raises InputError if the tree or shapes differ.
    """
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone{me}"
    )
    reader = ocp.handlers.PyTreeCheckpointHandler(multiprocessing_options=alone)
    try:
        saved = reader.metadata(path / "state").tree
        if not field:
            _require_same_shapes(saved, abstract, path)
        elif saved.get(field) is None:
            raise InputError(f"checkpoint {path} has no {field}")
        else:
            # Read by a device: if orbax reads into numpy and one file is damaged, every
            # other read in progress prints a traceback.
            here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            place = functools.partial(jax.ShapeDtypeStruct, sharding=here)
            abstract = {field: saved[field]}
            abstract = jax.tree.map(lambda x: place(x.shape, x.dtype), abstract)
        shardings = ocp.checkpoint_utils.construct_restore_args(abstract)
        arguments = ocp.args.PyTreeRestore(
            item=abstract, restore_args=shardings, partial_restore=bool(field)
        )
        found = reader.restore(path / "state", args=arguments)
    except Exception as error:
        cause = error.__cause__ if type(error) is Exception else error
        if not isinstance(cause, OSError | ValueError | KeyError):
            raise
        return None, _reason(cause) or type(cause).__name__
    finally:
        reader.close()
    return (jax.tree.map(np.asarray, found[field]) if field else found), ""


def _require_same_shapes(saved: Any, wanted: Any, path: Path) -> None:
    """Raise InputError naming the first parameter that differs and both shapes."""
    there, here = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
            for path, leaf in jax.tree.leaves_with_path(tree)
        }
        for tree in (saved, wanted)
    )
    for name in [*here, *there]:
        ours, theirs = here.get(name, "absent"), there.get(name, "absent")
        if ours != theirs:
            raise InputError(
                f"checkpoint {path} does not fit this config: {name} is {theirs} in "
                f"the checkpoint and {ours} in the config; use the config it was "
                "trained with, or another workdir"
            )


def _reason(error: Exception) -> str:
    """What failed, in a few words; tensorstore's message holds the system's code."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(code[1])) if code else str(error)[:200].replace("\n", " ")


@functools.cache
def _silence() -> None:
    """Drop orbax's messages but warnings, and tracebacks of other files in progress.

    A failure raises an exception all the same.
    """
    report = sys.unraisablehook
    expected = ("Event loop is closed", "Encountered error while reading array")
    sys.unraisablehook = lambda failed: (
        str(failed.exc_value).startswith(expected) or report(failed)
    )
    logging.getLogger("asyncio").addFilter(lambda line: "never ret" not in line.msg)
    logging.getLogger("absl").addFilter(
        lambda line: "orbax" not in line.pathname or line.levelno == logging.WARNING
    )
