"""Parallel text that grows block by block, and is continued after any stop.

FOLDER/train.de, train.en   line N of one translates line N of the other
FOLDER/report.json          source lines that are done and pairs kept and dropped;
                            bytes of both files; what all lines are made with
FOLDER/.lock                held by the process that writes into the folder
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from jaxformer.system.errors import InputError
from jaxformer.system.files import GONE, naming, owned, require_local, write_atomically

logger = logging.getLogger(__name__)

REPORT = "report.json"
_LOCK = ".lock"


@dataclass(frozen=True)
class GrowthReport:
    """The progress of a growing text, which report.json stores with a checksum."""

    lines: int  # of the source, that are done
    of: int  # lines of the source in all
    kept: int  # pairs
    dropped: dict[str, int]  # pairs, by reason
    bytes: dict[str, int]  # of each file
    made_with: dict[str, object]  # JSON values that all lines depend on


class GrowingCorpus:
    """Two text files, line by line parallel, and the report of how far they are.

    The report is replaced after each block, once the block is on disk. So a stop at any
    moment loses at most the block in work.
    """

    def __init__(self, folder: Path, report: GrowthReport) -> None:
        """Drop what an incomplete block has added to the files."""
        self.folder, self.report = folder, report
        paths = {folder / name: size for name, size in report.bytes.items()}
        for path, size in paths.items():
            with path.open("ab") as file:  # made, if it is not there yet
                if file.tell() < size:
                    raise InputError(
                        f"{path} has {file.tell():,} bytes and {REPORT} says {size:,}; "
                        f"put a copy back, or remove {folder} to begin anew"
                    )
        for path, size in paths.items():
            if path.stat().st_size > size:
                os.truncate(path, size)

    def append(
        self, lines: int, sides: Sequence[Sequence[str]], dropped: Mapping[str, int]
    ) -> None:
        """Add a block: its number of source lines, the sides of its pairs, and counts.

        Raises OSError, such as that of a full disk.
        """
        report = self.report
        sizes = {}
        for name, side in zip(report.bytes, sides, strict=True):
            path = self.folder / name
            with naming(path), path.open("ab") as file:
                file.writelines(f"{line}\n".encode() for line in side)
                file.flush()
                os.fsync(file.fileno())
                sizes[name] = file.tell()
        self.report = replace(
            report,
            lines=report.lines + lines,
            kept=report.kept + len(sides[0]),
            dropped={why: n + dropped.get(why, 0) for why, n in report.dropped.items()},
            bytes=sizes,
        )
        _write(self.folder, self.report)


@contextmanager
def grow_corpus(
    folder: Path,
    names: Sequence[str],
    *,
    lines: int,
    reasons: Sequence[str],
    made_with: Mapping[str, object],
) -> Iterator[GrowingCorpus]:
    """Begin or continue the text in a folder, and own the folder in the block.

    `names` are those of the two files, `lines` the source lines in all, `reasons` those
    why pairs are dropped, and `made_with` JSON values that all lines depend on. Raises
    InputError if the folder holds anything else, is made with other values, is damaged
    or in use.
    """
    require_local(folder)
    before = _read(folder)  # refuses a folder before it writes anything there
    folder.mkdir(parents=True, exist_ok=True)
    with owned(folder, folder / _LOCK):
        before = _read(folder)
        if before is None:
            before = GrowthReport(
                lines=0, of=lines, kept=0, dropped=dict.fromkeys(reasons, 0),
                bytes=dict.fromkeys(names, 0), made_with=dict(made_with),
            )  # fmt: skip
            _write(folder, before)
        old = before.made_with
        for key in {**old, **made_with}:
            if old.get(key) != made_with.get(key):
                raise InputError(
                    f"{folder} was begun with {key}={old.get(key)!r}, and this command "
                    f"has {made_with.get(key)!r}; repeat the first command, or choose "
                    "a new folder"
                )
        if done := before.lines:
            how = "complete" if done == lines else "continued"
            logger.info("%s: %s, %s lines done", folder, how, f"{done:,} of {lines:,}")
        yield GrowingCorpus(folder, before)


def _write(folder: Path, report: GrowthReport) -> None:
    values = asdict(report)
    signed = {**values, "sha256": _hash(values)}
    text = json.dumps(signed, indent=2, ensure_ascii=False)
    write_atomically(folder / REPORT, f"{text}\n")


def _hash(values: dict) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> GrowthReport | None:
    """Read the report of a folder; None if the folder is absent or has none yet."""
    if not folder.exists():
        return None
    # The lock, and a first report whose writing was stopped.
    if folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir()):
        return None
    try:
        is_file = (folder / REPORT).is_file()  # a device may have no end
        values = json.loads((folder / REPORT).read_bytes() if is_file else b"")
        if dict.pop(values, "sha256") == _hash(values):
            return GrowthReport(**values)
    except (*GONE, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise InputError(
        f"{folder} exists already and holds no corpus of this command, or a damaged "
        f"{REPORT}; choose a new folder"
    )
