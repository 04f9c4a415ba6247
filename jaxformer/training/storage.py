"""Checkpoint files by orbax: the only module that imports it.

A checkpoint is a folder named by its step, with one item, `state`.
"""

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxformer.errors import InputError


class DamagedError(Exception):
    """A checkpoint whose files cannot be read; its message is the reason."""


@functools.cache
def silence() -> None:
    """Drop orbax's messages but warnings, and tracebacks of other files in progress.

    A failure raises an exception all the same.
    """
    report = sys.unraisablehook

    def report_unless_of_a_file(failed: Any) -> None:
        expected = ("Event loop is closed", "Encountered error while reading array")
        if not str(failed.exc_value).startswith(expected):
            report(failed)

    sys.unraisablehook = report_unless_of_a_file
    logging.getLogger("asyncio").addFilter(lambda line: "never ret" not in line.msg)
    logging.getLogger("absl").addFilter(
        lambda line: "orbax" not in line.pathname or line.levelno == logging.WARNING
    )


def open_writer(folder: Path) -> ocp.CheckpointManager:
    """Open a folder to save into, all processes together; makes it."""
    options = ocp.CheckpointManagerOptions(create=True, cleanup_tmp_directories=True)
    return ocp.CheckpointManager(folder, options=options)


def save(writer: ocp.CheckpointManager, step: int, state: Any) -> None:
    """Begin to save any pytree of arrays; `wait_until_finished` may raise, too."""
    items = ocp.args.Composite(state=ocp.args.PyTreeSave(state))
    writer.save(step, args=items, force=True)


def read_state(path: Path, abstract: Any) -> Any:
    """Read the checkpoint at `path` onto the shardings of `abstract`.

    Raises DamagedError for unreadable files, InputError if the tree or shapes differ.
    """
    with _reading(path) as (reader, folder):
        _require_same_shapes(reader.metadata(folder).tree, abstract, path)
        return reader.restore(folder, args=_arguments(abstract))


def read_field(path: Path, field: str) -> Any:
    """Read one field of the state at `path` as numpy arrays in nested dicts.

    Raises DamagedError for unreadable files, InputError without such a field.
    """
    with _reading(path) as (reader, folder):
        saved = reader.metadata(folder).tree.get(field)
        if saved is None:
            raise InputError(f"checkpoint {path} has no {field}")
        # Read by a device: if orbax reads into numpy and one file is damaged, every
        # other read in progress prints a traceback.
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
            {field: saved},
        )
        arguments = _arguments(abstract, partial_restore=True)
        return jax.tree.map(np.asarray, reader.restore(folder, args=arguments)[field])


def reason(error: Exception) -> str:
    """What failed, in a few words; tensorstore's message holds the system's code."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(code[1])) if code else str(error)[:200].replace("\n", " ")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[ocp.handlers.PyTreeCheckpointHandler, Any]]:
    """Yield a reader for this process alone, and the folder of the state at `path`.

    Truncated, overwritten or missing files raise DamagedError: the JSON parser and
    tensorstore raise ValueError, a missing item KeyError, and orbax may wrap any of
    them in a bare Exception. Other errors, such as a lack of memory, are no damage.
    """
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone{me}"
    )
    reader = ocp.handlers.PyTreeCheckpointHandler(multiprocessing_options=alone)
    try:
        yield reader, path / "state"
    except Exception as error:
        cause = error.__cause__ if type(error) is Exception else error
        if not isinstance(cause, OSError | ValueError | KeyError):
            raise
        raise DamagedError(reason(cause)) from error
    finally:
        reader.close()


def _arguments(abstract: Any, **options: bool) -> ocp.args.PyTreeRestore:
    shardings = ocp.checkpoint_utils.construct_restore_args(abstract)
    return ocp.args.PyTreeRestore(item=abstract, restore_args=shardings, **options)


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
        if here.get(name) != there.get(name):
            raise InputError(
                f"checkpoint {path} does not fit this config: {name} is "
                f"{there.get(name, 'absent')} in the checkpoint and "
                f"{here.get(name, 'absent')} in the config; use the config it was "
                "trained with, or another workdir"
            )
