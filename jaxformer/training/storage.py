"""Checkpoint folders by orbax: opened, written, read, and quiet about it.

What `jaxformer.training.checkpoint` needs of orbax and nothing else; the only module
that imports it. A checkpoint has one item, `state`.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxformer.errors import InputError


class DamagedError(Exception):
    """A checkpoint whose files cannot be read; its message is the reason."""


def open_writer(
    url_or_path: str, choose: Callable[[Sequence[int]], set[int | None]]
) -> ocp.CheckpointManager:
    """Open a folder to save into, all processes together; makes it.

    `choose` says which of the steps there are stay when one more is saved.
    """
    return ocp.CheckpointManager(
        url_or_path,
        options=ocp.CheckpointManagerOptions(
            create=True,
            cleanup_tmp_directories=True,
            preservation_policy=_KeepSteps(choose),
        ),
        handler_registry=_handlers(ocp.options.MultiprocessingOptions()),
    )


def open_reader(url_or_path: str) -> ocp.CheckpointManager:
    """Open a folder to read from, each process for itself."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone{me}"
    )
    return ocp.CheckpointManager(
        url_or_path,
        options=ocp.CheckpointManagerOptions(
            create=False, multiprocessing_options=alone
        ),
        handler_registry=_handlers(alone),
    )


def save(manager: ocp.CheckpointManager, step: int, state: Any) -> None:
    """Begin to save any pytree of arrays; a failure may come later, from waiting."""
    items = ocp.args.Composite(state=ocp.args.PyTreeSave(state))
    manager.save(step, args=items, force=True)


def read(
    manager: ocp.CheckpointManager, step: int, field: str | None, abstract: Any
) -> Any:
    """The whole state (field None) or one field, onto the places in `abstract`.

    Raises DamagedError if the files cannot be read, InputError if what is in them is
    not what is asked for.
    """
    path = manager.directory / str(step)
    with _reading_files():
        saved = manager.metadata(step).item_metadata["state"].tree
    if field is not None:
        if saved.get(field) is None:
            raise InputError(f"checkpoint {path} has no {field}")
        saved = {field: saved[field]}
        abstract = saved if abstract is None else {field: abstract}
    _require_same_shapes(saved, abstract, path)
    arguments = ocp.args.PyTreeRestore(
        item=abstract,
        restore_args=jax.tree.map(_restore_args, abstract),
        partial_restore=field is not None,
    )
    with _reading_files():
        items = ocp.args.Composite(state=arguments)
        state = manager.restore(step, args=items)["state"]
    state = jax.tree.map(
        lambda want, got: got if _has_place(want) else np.asarray(got), abstract, state
    )
    return state if field is None else state[field]


def reason(error: Exception) -> str:
    """What went wrong in a few words; tensorstore hides the system's in a long line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(code[1])) if code else str(error)[:200].replace("\n", " ")


# Behind the doors -----------------------------------------------------------------


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
        raise DamagedError(reason(cause)) from error


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
