"""The checkpoints of a run: which are kept, and which parameters are read.

Checkpoints on schedule are those at a step divisible by `training.save_every`, and the
last step of the run. They alone count for `keep` and averages. Others are saved by a
stop, only to resume from, and removed after the next one on schedule. The best of the
steps with a score stays.
"""

import contextlib
import functools
import logging
import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from jaxformer.models.sequence_model import Parameters
from jaxformer.system.errors import InputError, StoppedError, counted
from jaxformer.system.first import once
from jaxformer.system.mirror import LOCAL, Mirror
from jaxformer.training.average_cache import kept_average
from jaxformer.training.checkpoint_files import (
    Origin,
    Writer,
    are_of_one_training,
    are_several,
    find,
    find_damage,
    read,
    read_origin,
    reason,
    silence,
)
from jaxformer.training.log import best_of

State = TypeVar("State")  # a pytree of arrays
logger = logging.getLogger(__name__)


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one run; a context manager that finishes the last save."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int | None,
        scores: dict[int, float],
        run: str = "",
        last: int | None = None,
        mirror: Mirror = LOCAL,
    ) -> None:
        """Open the folder to save into it, or only to read if `keep` is None.

        The newest `keep` checkpoints on schedule stay on disk, and the best by
        `scores`, a dict to which the caller may add steps. `run` is `Record.run` of
        their run. The step `last` is on schedule. The `mirror` has the same checkpoints
        in another place.

        All methods raise InputError if a checkpoint is of another run, of another
        continuation of it, or of another step, and OSError if the folder cannot be
        listed. Those that read raise RemovedError if training removes the checkpoint
        meanwhile.
        """
        self.directory = directory.absolute()
        self._keep, self.scores, self._last = keep, scores, last
        self._run, self._starts = run, [_start(0)]
        self._mirror = mirror
        self._damaged: dict[int, str] = {}  # the damage of each step
        self._saving: int | None = None  # the save to wait for
        self._writer: Writer | None = None
        silence()
        if keep is not None:
            self._writer = Writer(self.directory, mirror)
            self._written = self._scan()  # the same for all processes at any time

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind not in (None, StoppedError):
            # Of several processes only this one may be here. It reports that error.
            with contextlib.suppress(InputError, OSError, ValueError):
                if self._writer is not None:
                    self._writer.close()
            return
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending, without those found damaged."""
        return sorted(self._all_steps().keys() - self._damaged.keys())

    def scheduled_steps(self) -> list[int]:
        """Those of `steps` that are on schedule."""
        found = self._all_steps().items()
        scheduled = {step for step, on in found if on or step == self._last}
        return sorted(scheduled - self._damaged.keys())

    def latest_step(self) -> int | None:
        """The newest step with a checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def is_intact(self, step: int) -> bool:
        """Whether the files of a checkpoint have their checksums."""
        return not self._find_damage(self._path(step))

    def best_step(self) -> int | None:
        """The step that `best_of` prefers of those with a checkpoint, or None."""
        left = self.steps()
        return best_of({s: score for s, score in self.scores.items() if s in left})

    def save(self, step: int, state: object, *, scheduled: bool = True) -> None:
        """Save any pytree of arrays in the background; it may be donated afterwards.

        Raises InputError if this save cannot begin or the one before failed.
        """
        self.wait()
        self._saving = step
        with self._explain_failure():
            self._remove({*self._damaged})
            self._written[step] = scheduled
            origin = Origin(self._run, step, scheduled, self._starts)
            self._writer.save_state(self._path(step), state, origin)

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps."""
        self.wait()
        self._remove({later for later in self._written if later > step})

    def wait(self) -> None:
        """Block until the save in progress is on disk; then remove what is not kept.

        `steps()` counts that save already. Raises InputError if it failed.
        """
        if self._saving is None:
            return
        with self._explain_failure():
            self._writer.wait_until_finished()
            kept = self.scheduled_steps()[-self._keep :]
            kept += [self.best_step(), self.latest_step()]
            self._remove(self._written.keys() - {*kept})
        self._saving = None

    def restore_latest(
        self, abstract: State, *, before: float = math.inf
    ) -> tuple[State, int] | None:
        """The newest readable state and its step; None without a step below `before`.

        `abstract` has the state's structure, with ShapeDtypeStructs that have
        shardings. Damaged checkpoints are named in a warning, skipped, and removed
        when the next one is saved. Raises InputError if no checkpoint can be read, or
        its tree or a shape differs.
        """
        self.wait()  # an incomplete checkpoint would seem damaged
        older = [step for step in sorted(self._all_steps()) if step < before]
        for step in reversed(older):
            if step in self._damaged:
                continue
            state, damage = read(self._path(step), self._mirror, abstract=abstract)
            if not damage:
                before = read_origin(self._path(step), self._mirror).starts
                self._starts = [*before, _start(step)]
                return state, step
            self._damaged[step] = damage
            logger.warning(
                "checkpoint %s is damaged (%s): skipped", self._path(step), damage
            )
        if older:
            raise InputError(
                f"none of the checkpoints in {self.directory} can be read "
                f"({older[-1]}: {self._damaged[older[-1]]}); put back a copy, or "
                "remove the folder to start afresh"
            )
        return None

    def restore_parameters(
        self, step: int | None, *, field: str = "params"
    ) -> Parameters:
        """Read "params", "ema" or another field of a step; None: of the newest.

        Returns numpy arrays in nested dicts. Raises InputError if there is no such
        checkpoint or field, or it is damaged.
        """
        steps = self._require_any()
        if step is not None and step not in steps:
            raise InputError(
                f"there is no checkpoint {self._path(step)}; there are steps "
                f"{_join(steps)}"
            )
        return self._read_field(max(steps) if step is None else step, field)

    def average(self, count: int, *, field: str = "params") -> Parameters:
        """Average the parameters of the last `count` checkpoints (section 6.1).

        Returns float32 numpy arrays in nested dicts. If there are fewer checkpoints on
        schedule, all of them are used, and the newest one if there are none; the log
        says which. That of an imported model, step 0, is used only if there is no
        other. Raises InputError if there is no checkpoint or one is damaged.
        """
        if not (used := [step for step in self.scheduled_steps() if step][-count:]):
            used = self._require_any()[-1:]
            if used != [0]:
                logger.warning("no checkpoint on schedule yet: using step %s", *used)

        def average() -> Parameters:
            read = (jax.tree.map(np.float32, self._read_field(n, field)) for n in used)
            total = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), read)
            return jax.tree.map(lambda leaf: leaf / np.float32(len(used)), total)

        paths = [self._path(step) for step in used]
        if are_several():  # they must read alike
            found = average()
        else:
            found = kept_average(paths, field, average, is_damaged=self._find_damage)
        level = logging.INFO if len(used) == count else logging.WARNING
        asked = f" of the {count:,} asked for" if len(used) < count else ""
        what = "averaged" if len(used) > 1 else "using"
        what = f"{what} {counted(len(used), 'checkpoint')}{asked}"
        logger.log(level, "%s: step%s %s", what, "s" * (len(used) > 1), _join(used))
        return found

    def _find_damage(self, path: Path) -> str:
        return find_damage(path, self._mirror)

    def _path(self, step: int) -> Path:
        return self.directory / str(step)

    def _all_steps(self) -> dict[int, bool]:
        """Steps with a checkpoint, and whether each was saved on schedule."""
        return self._scan() if self._writer is None else self._written

    def _scan(self) -> dict[int, bool]:
        """Steps with a checkpoint on disk, as process 0 finds them."""

        def read() -> list[tuple[int, bool]]:
            steps, before = [], Origin(self._run, 0, True, [])
            for step, path in sorted(find(self.directory).items()):
                if found := read_origin(path, self._mirror):
                    self._require_own(found, step, before)
                    before = found
                steps.append((step, found is None or found.scheduled))
            return steps

        return dict(map(tuple, once(read)))

    def _require_own(self, found: Origin, step: int, before: Origin) -> None:
        """Raise InputError if a checkpoint is not of this run and training."""
        if found.run != self._run:
            fault = "by another run"
        elif found.step != step:
            fault = f"at step {found.step}"
        elif not are_of_one_training(before, found):
            fault = f"by another continuation of this run than step {before.step}"
        else:
            return
        raise InputError(
            f"checkpoint {self._path(step)} was saved {fault}; move it out of this "
            "folder"
        )

    def _read_field(self, step: int, field: str) -> Parameters:
        self.wait()  # an incomplete checkpoint would seem damaged
        parameters, damage = read(path := self._path(step), self._mirror, field=field)
        if damage:
            others = [other for other in self.steps() if other != step]
            intact = [other for other in others if self.is_intact(other)]
            raise InputError(
                f"checkpoint {path} is damaged ({damage}); put back a "
                "copy, remove it to do without it, or use an undamaged step "
                f"({_join(intact)})"
            )
        return parameters

    def _require_any(self) -> list[int]:
        if steps := self.steps():
            return steps
        raise InputError(f"there is no checkpoint in {self.directory}; train first")

    def _remove(self, steps: set[int]) -> None:
        for step in sorted(steps):
            self._writer.remove(self._path(step))
            del self._written[step]
            self._damaged.pop(step, None)

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        """Raise InputError if the save in progress fails within the block."""
        try:
            yield
        except BaseException as error:  # no other checkpoint is removed for this one
            step, self._saving = self._saving, None
            self._written.pop(step, None)
            if not isinstance(error, OSError | ValueError):  # the latter of tensorstore
                raise
            latest = self.latest_step()
            raise InputError(
                f"checkpoint {self._path(step)} could not be saved: "
                f"{reason(error)}; make room or make the folder writable and start "
                f"again, from {'the beginning' if latest is None else f'step {latest}'}"
            ) from error


def _start(step: int) -> list[int | str]:
    """An element of `Origin.starts`."""
    return [step, secrets.token_hex(4)]


def _join(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
