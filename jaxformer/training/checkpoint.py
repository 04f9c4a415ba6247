"""Checkpoints: the training state on disk, and parameters read back from it.

The training loop saves and resumes through `Checkpoints`; translation, evaluation and
export read parameters with it, of one checkpoint or averaged over the last few
(section 6.1). This is the only module that knows orbax.

A checkpoint is the folder `<directory>/<step>`, which appears complete or not at all.
It holds `state`, the pytree given to `save`, addressed by the names of its fields and
parameters ("params/encoder/layer_0/..."). Arrays are stored whole, whatever devices
they were spread over, so they can be read back onto any others.

Several processes write one checkpoint together, each what its devices hold, and read
each for itself; whether a checkpoint could be read is then agreed, so that no process
goes on from another one than the rest. They need a file system that all of them see.
"""

import contextlib
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxformer import processes
from jaxformer.errors import InputError

logger = logging.getLogger(__name__)


def _is_for_the_user(record: logging.LogRecord) -> bool:
    """Keep orbax's warnings, drop its narration and its tracebacks of failed saves.

    Every failure also reaches `Checkpoints` as an exception, which reports it once.
    """
    return "orbax" not in record.pathname or record.levelno == logging.WARNING


logging.getLogger("absl").addFilter(_is_for_the_user)
# When one of many writes fails, asyncio and tensorstore's threads would each print a
# traceback for every other one under way.
logging.getLogger("asyncio").addFilter(lambda record: "never ret" not in record.msg)


def _print_unless_of_a_write(failed: Any) -> None:
    if str(failed.exc_value) != "Event loop is closed":
        _print_unraisable(failed)


_print_unraisable, sys.unraisablehook = sys.unraisablehook, _print_unless_of_a_write


class _DamagedError(Exception):
    """A checkpoint whose files cannot be read; its message is the reason."""


@contextlib.contextmanager
def _reading_files() -> Iterator[None]:
    """Turn what reading truncated, overwritten or missing files raises into one error.

    The JSON parser and tensorstore raise ValueError, a missing item KeyError, and orbax
    may wrap any of them in a bare Exception. Others, such as a lack of memory or a
    mistake in the program, do not mean that a checkpoint is damaged.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if type(error) is Exception else error
        if not isinstance(cause, OSError | ValueError | KeyError):
            raise
        raise _DamagedError(_reason(cause)) from error


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
        self._writer: ocp.CheckpointManager | None = None
        try:
            if keep is not None:
                self._writer = ocp.CheckpointManager(
                    url_or_path,
                    options=ocp.CheckpointManagerOptions(
                        create=True,
                        cleanup_tmp_directories=True,
                        preservation_policy=_KeepSteps(self._steps_to_keep),
                    ),
                    handler_registry=_handlers(ocp.options.MultiprocessingOptions()),
                )
            self._reader = ocp.CheckpointManager(
                url_or_path,
                options=ocp.CheckpointManagerOptions(
                    create=False,
                    multiprocessing_options=_alone(),
                ),
                handler_registry=_handlers(_alone()),
            )
        except OSError as error:
            raise InputError(
                f"the checkpoint folder {directory} cannot be used: {_reason(error)}; "
                "choose another --workdir"
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
            self._writer.save(
                step,
                args=ocp.args.Composite(state=ocp.args.PyTreeSave(state)),
                force=True,
            )
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
        return InputError(
            f"checkpoint {self._path(self._saving)} could not be saved: "
            f"{_reason(error)}; make room or make the folder writable and start again, "
            + ("from the beginning" if latest is None else f"from step {latest}")
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
            except _DamagedError as error:
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
        except _DamagedError as error:
            raise InputError(
                f"checkpoint {self._path(step)} is damaged ({error}); use another step"
            ) from error

    def _read(self, step: int, field: str | None, abstract: Any) -> Any:
        """The whole state (field None) or one field; InputError or _DamagedError."""
        self.wait()  # a checkpoint half written would look damaged
        with _reading_files():
            saved = self._reader.metadata(step).item_metadata["state"].tree
        if field is not None:
            if saved.get(field) is None:
                raise InputError(f"checkpoint {self._path(step)} has no {field}")
            saved = {field: saved[field]}
            abstract = saved if abstract is None else {field: abstract}
        _require_same_shapes(saved, abstract, self._path(step))
        arguments = ocp.args.PyTreeRestore(
            item=abstract,
            restore_args=jax.tree.map(_restore_args, abstract),
            partial_restore=field is not None,
        )
        with _reading_files():
            items = ocp.args.Composite(state=arguments)
            state = self._reader.restore(step, args=items)["state"]
        state = jax.tree.map(
            lambda want, got: got if _has_place(want) else np.asarray(got),
            abstract,
            state,
        )
        return state if field is None else state[field]


class _KeepSteps(ocp.checkpoint_managers.PreservationPolicy):
    """Tells orbax to preserve the steps that a function chooses among all steps."""

    def __init__(self, choose: Callable[[Sequence[int]], set[int | None]]) -> None:
        self._choose = choose

    def should_preserve(
        self,
        checkpoints: Sequence[ocp.checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: ocp.checkpoint_managers.PreservationContext,
    ) -> list[bool]:
        kept = self._choose([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]


def _alone() -> ocp.options.MultiprocessingOptions:
    """Of this process alone: orbax waits for no other."""
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone{me}"
    )


def _handlers(
    options: ocp.options.MultiprocessingOptions,
) -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """What reads and writes the state, so that a fresh process can read metadata."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handler = ocp.handlers.PyTreeCheckpointHandler(multiprocessing_options=options)
    registry.add("state", ocp.args.PyTreeSave, handler)
    registry.add("state", ocp.args.PyTreeRestore, handler)
    return registry


def _has_place(leaf: Any) -> bool:
    """Whether a leaf says where to go; the metadata of a saved one merely names it."""
    return isinstance(leaf.sharding, jax.sharding.Sharding)


def _restore_args(leaf: Any) -> ocp.ArrayRestoreArgs:
    """Onto the leaf's sharding; without one, onto a device on the way to numpy.

    Orbax can read into numpy directly, but then one damaged file makes every other
    read under way print a traceback of its own.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return ocp.ArrayRestoreArgs(
        sharding=leaf.sharding if _has_place(leaf) else here,
        global_shape=leaf.shape,
        dtype=leaf.dtype,
    )


def _shapes_by_name(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
        for path, leaf in leaves
    }


def _require_same_shapes(saved: Any, wanted: Any, path: Any) -> None:
    """Raise InputError naming the first parameter that differs and both shapes."""
    there, here = _shapes_by_name(saved), _shapes_by_name(wanted)
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise InputError(
                f"checkpoint {path} does not fit this config: {name} is "
                f"{there.get(name, 'absent')} in the checkpoint and "
                f"{here.get(name, 'absent')} in the config; use the config it was "
                "trained with, or another --workdir"
            )


def _reason(error: Exception) -> str:
    """What went wrong in a few words; tensorstore hides the system's in a long line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(code[1])) if code else str(error)[:200].replace("\n", " ")
