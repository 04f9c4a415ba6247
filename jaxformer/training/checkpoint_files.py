"""One checkpoint on disk: written by orbax with checksums, verified and read back.

A checkpoint is the folder `<directory>/<step>` with one item, `state`, metadata that
names the run and the step, and checksums of all its files. It appears complete or not
at all, after one of its arrays was read back, on a file system that all processes see,
or on an object store. Each process reads for itself, and writes what its devices
hold; on an object store the first one writes all.
"""

import functools
import json
import logging
import math
import os
import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jaxformer.system import processes
from jaxformer.system.errors import DamagedError, InputError
from jaxformer.system.files import (
    CHECKSUMS,
    GONE,
    entries,
    remove,
    verify_checksums,
    write_checksums,
)
from jaxformer.system.first import once
from jaxformer.system.mirror import LOCAL, Mirror
from jaxformer.training.frozen import name_of

State = TypeVar("State")  # a pytree of arrays
are_several = processes.are_several
METADATA = "_CHECKPOINT_METADATA"  # a file of orbax, with `Origin` in it
UNFINISHED = ocp.path.atomicity.TMP_DIR_SUFFIX  # of a folder that is no checkpoint
_UPLOAD = 24 * 3600  # seconds that saving, with the upload, may take


class Origin(NamedTuple):
    """What a checkpoint says of itself."""

    run: str  # `Record.run` of the run that saved it; "": an earlier version
    step: int
    scheduled: bool
    # The starts of training that led to it: the step, and a random number. Two runs
    # that continue a copy of one run have its name, and differ in these.
    starts: list[list[int | str]]


class RemovedError(InputError):
    """A checkpoint was removed while it was read, as training removes old ones."""


def _checksummed_path(mirror: Mirror) -> type:
    """Make orbax's temporary folder get checksums of its files before it is renamed."""

    class ChecksummedPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
        async def finalize(self) -> None:
            self._checkpoint_metadata_store.wait_until_finished()
            with ThreadPoolExecutor() as pool:  # orbax has an event loop in this thread
                pool.submit(_read_smallest, Path(self.get())).result()
            write_checksums(Path(self.get()))
            os.rename(self.get(), self.get_final())
            mirror.push(Path(self.get_final()))

    return ChecksummedPath


class Writer:
    """Writes and removes checkpoints; all processes make the same calls.

    Of several processes whose folders are copies of a remote `mirror`, the first one
    writes what the devices of all hold.
    """

    def __init__(self, directory: Path, mirror: Mirror) -> None:
        """Make the folder of all checkpoints, and remove what a killed process left."""
        self._mirror = mirror
        directory.mkdir(parents=True, exist_ok=True)
        if processes.is_first():
            for unfinished in entries(directory, f"*{UNFINISHED}"):
                remove(unfinished, ignore_errors=True)  # NFS keeps open files
        self._gathers = processes.are_several() and mirror.is_remote
        self._saver: ocp.AsyncCheckpointer | None = None
        if processes.is_first() or not self._gathers:
            alone = {"multiprocessing_options": _alone()} if self._gathers else {}
            handler = ocp.CompositeCheckpointHandler(
                composite_options=ocp.CompositeOptions(**alone)
            )
            self._saver = ocp.AsyncCheckpointer(
                handler,
                timeout_secs=_UPLOAD,
                temporary_path_class=_checksummed_path(mirror),
                **alone,
            )

    def save_state(self, path: Path, state: object, origin: Origin) -> None:
        """Save a pytree of arrays in the background; it may be donated afterwards."""
        if self._gathers:
            state = jax.tree.map(_whole, state)
        if self._saver:
            items = ocp.args.Composite(state=ocp.args.PyTreeSave(state))
            metadata = origin._asdict()
            self._saver.save(path, args=items, custom_metadata=metadata, force=True)

    def wait_until_finished(self) -> None:
        """Wait until the state is on disk. Raises what failed, in all processes."""
        if not self._gathers:
            self._saver.wait_until_finished()
            return
        fault = ""
        with processes.sharing_mistakes():
            try:
                if self._saver:
                    self._saver.wait_until_finished()
            except (OSError, ValueError) as error:
                fault = reason(error)
        if fault := processes.from_first(fault):
            raise OSError(fault)

    def close(self) -> None:
        """Wait, and release what the writer holds."""
        if self._saver:
            self._saver.close()

    def remove(self, path: Path) -> None:
        """Remove a checkpoint by a rename, so that no reader finds half of it.

        A folder without a file of ours in it is left alone.
        """
        with processes.sharing_mistakes() if self._gathers else nullcontext():
            files = (path / CHECKSUMS, path / METADATA)
            if processes.is_first() and any(file.exists() for file in files):
                self._mirror.remove(path)
                vanished = path.with_name(path.name + UNFINISHED)
                remove(vanished, ignore_errors=True)
                with suppress(FileNotFoundError):  # someone removed it
                    os.rename(path, vanished)
                remove(vanished, ignore_errors=True)


def _alone() -> ocp.options.MultiprocessingOptions:
    """Let orbax use this process without the others."""
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone{me}"
    )


def _whole(array: jax.Array) -> np.ndarray | None:
    """Return in process 0 a whole array, of which each process may hold a part."""
    if not array.is_fully_replicated:
        array = multihost_utils.process_allgather(array, tiled=True)
    elif processes.is_first():
        array = array.addressable_data(0)
    return np.asarray(array) if processes.is_first() else None


def find(directory: Path) -> dict[int, Path]:
    """Return the folders of checkpoints by their steps; raises OSError as `entries`."""
    found = [p for p in entries(directory, "[0-9]*") if p.name.isdecimal()]
    steps = {int(path.name): path for path in found if path.is_dir()}
    return {step: path for step, path in steps.items() if path.name == str(step)}


def read_origin(path: Path, mirror: Mirror) -> Origin | None:
    """Return what a checkpoint says of itself; None if its metadata is damaged.

    `read` then reports the damage.
    """
    try:
        mirror.pull_file(path, path / METADATA)
        found = json.loads((path / METADATA).read_bytes())["custom_metadata"] or {}
        older = {"run": "", "step": int(path.name), "scheduled": True, "starts": []}
        return Origin(**{**older, **found})
    except (*GONE, ValueError, KeyError, TypeError, DamagedError):
        return None


def are_of_one_training(earlier: Origin, later: Origin) -> bool:
    """Whether the training that saved the later checkpoint had saved the earlier."""
    count = len(earlier.starts)
    follow = all(step >= earlier.step for step, _ in later.starts[count:])
    return later.starts[:count] == earlier.starts and follow


def find_damage(path: Path, mirror: Mirror = LOCAL) -> str:
    """Say which file of a checkpoint is damaged; "" if none is. Same for all processes.

    Raises RemovedError if there is no such checkpoint, and InputError if a file cannot
    be read at present.
    """
    return _agree(path, mirror, once(lambda: _pull_verified(path, mirror)))


def _pull_verified(path: Path, mirror: Mirror) -> str:
    """Download what is missing of a checkpoint; return its damage."""
    try:
        mirror.pull(path)
        damage = verify_checksums(path)
        if damage and mirror.is_remote:
            mirror.repair(path)
            damage = verify_checksums(path)
    except DamagedError as error:
        damage = str(error)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not (path / CHECKSUMS).exists():
        damage = f"no {CHECKSUMS}"
    return damage


def _agree(path: Path, mirror: Mirror, damage: str) -> str:
    """Return the damage that any process found; RemovedError if the path is gone."""
    found = max(processes.gather(damage))
    if found and any(processes.gather(not path.exists())):
        mirror.refresh()
        raise RemovedError(
            f"checkpoint {path} was removed while it was read; read another one"
        )
    return found


def read(
    path: Path, mirror: Mirror, *, abstract: object = None, field: str = ""
) -> tuple[Any, str]:
    """Read the state at `path` onto the shardings of `abstract`, or a field as numpy.

    Returns the state and "", or None and the damage, the same for all processes. Raises
    InputError if the tree or shapes differ or a file cannot be read at present, and
    RemovedError.
    """
    found, damage = None, find_damage(path, mirror)
    if not damage:
        with processes.sharing_mistakes():  # entered by all, whatever one finds
            if mirror.is_remote and not processes.is_first():
                mirror.refresh()
                damage = _pull_verified(path, mirror)
            if not damage:
                found, damage = _read_verified(path, abstract=abstract, field=field)
        damage = _agree(path, mirror, damage)
    return found, damage


def _read_verified(path: Path, *, abstract: object, field: str) -> tuple[Any, str]:
    """Read as `read` does, or return why files cannot be read.

    A checkpoint that vanishes meanwhile can make orbax raise any error. Otherwise
    ValueError, OSError and KeyError are failures of the file system, which orbax may
    wrap in a bare Exception. Others, such as a lack of memory, are no damage.
    """
    reader = ocp.handlers.PyTreeCheckpointHandler(multiprocessing_options=_alone())
    try:
        saved = reader.metadata(path / "state").tree
        if not field:
            _require_same_shapes(saved, abstract, path)
        elif saved.get(field) is None:
            raise InputError(f"checkpoint {path} has no {field}")
        else:
            abstract = jax.tree.map(_here, {field: saved[field]})
        item = abstract
        if not field:  # checkpoints of earlier versions lack `baseline`
            item = {k: v for k, v in abstract._asdict().items() if k in saved}
        found = _restore(reader, path, item, is_part=bool(field))
        found = found if field else type(abstract)(**found)
    except Exception as error:
        cause = error.__cause__ if type(error) is Exception else error
        if path.exists() and not isinstance(cause, OSError | ValueError | KeyError):
            raise
        code = _system_code(cause)
        if path.exists() and code and not isinstance(OSError(code, ""), GONE):
            raise _unreadable(path, cause) from error
        return None, reason(cause) or type(cause).__name__
    finally:
        reader.close()
    return (jax.tree.map(np.asarray, found[field]) if field else found), ""


def _read_smallest(path: Path) -> None:
    """Raise ValueError if the smallest array of a new checkpoint cannot be read back.

    orbax and tensorstore put arrays elsewhere if they read the path in another way.
    """
    reader = ocp.handlers.PyTreeCheckpointHandler(multiprocessing_options=_alone())
    try:
        saved = reader.metadata(path / "state").tree
        least = min(jax.tree.leaves(saved), key=lambda leaf: math.prod(leaf.shape))
        part = jax.tree.map(
            lambda leaf: _here(leaf) if leaf is least else ocp.PLACEHOLDER, saved
        )
        _restore(reader, path, part)
    except Exception as error:
        raise ValueError(f"it cannot be read back ({reason(error)})") from error
    finally:
        reader.close()


def _here(saved: ocp.metadata.value.ArrayMetadata) -> jax.ShapeDtypeStruct:
    """Describe a saved array, to be read onto the first local device.

    If orbax reads into numpy and one file is damaged, every other read in progress
    prints a traceback.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(saved.shape, saved.dtype, sharding=here)


def _restore(
    reader: ocp.handlers.PyTreeCheckpointHandler,
    path: Path,
    abstract: State,
    *,
    is_part: bool = False,
) -> State:
    shardings = ocp.checkpoint_utils.construct_restore_args(abstract)
    arguments = ocp.args.PyTreeRestore(
        item=abstract, restore_args=shardings, partial_restore=is_part
    )
    return reader.restore(path / "state", args=arguments)


def _require_same_shapes(saved: object, wanted: object, path: Path) -> None:
    """Raise InputError naming the first parameter that differs and both shapes."""
    there, here = (
        {
            name_of(path): tuple(leaf.shape)
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
                "trained with, or another run folder"
            )


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"checkpoint {path} cannot be read at present ({reason(error)}); make it "
        "readable and start again, or move it away to do without it"
    )


def _system_code(error: Exception) -> int | None:
    """The system's error number; tensorstore's message holds it."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return int(code[1]) if code else None


def reason(error: Exception) -> str:
    """What failed, in a few words."""
    code = _system_code(error)
    return os.strerror(code) if code else str(error)[:200].replace("\n", " ")


@functools.cache
def silence() -> None:
    """Drop orbax's messages except warnings, and tracebacks that follow a failure.

    The failure itself raises an exception. orbax then closes its event loop without
    the other arrays in progress. They fail in threads of tensorstore or in garbage
    collection, where Python calls nothing but this hook. Coroutines that have not begun
    emit a RuntimeWarning, which reaches this hook if warnings are errors.
    """
    report, unbegun = sys.unraisablehook, "coroutine 'async_serialize_from_host"
    expected = "Event loop is closed", "Encountered error while reading array", unbegun
    sys.unraisablehook = lambda failed: (
        str(failed.exc_value).startswith(expected) or report(failed)
    )
    warnings.filterwarnings("ignore", unbegun, RuntimeWarning)
    logging.getLogger("asyncio").addFilter(lambda line: "never ret" not in line.msg)
    logging.getLogger("absl").addFilter(
        lambda line: "orbax" not in line.pathname or line.levelno == logging.WARNING
    )
