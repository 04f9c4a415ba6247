"""TensorBoard's event files, written by the calling thread.

The SummaryWriter of tensorboardX writes in a thread of its own. On a full disk that
thread ends with a traceback, and training then blocks for ever.
"""

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 30.0


class Board:
    """One event file; raises OSError where it cannot be written."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Begin a file in which `first_step` and later steps replace earlier files'."""
        # Imported here: tensorboardX imports torch where it is installed.
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import scalar

        folder.mkdir(parents=True, exist_ok=True)
        now, host = time.time(), socket.gethostname()
        self._file = RecordWriter(f"{folder}/events.out.tfevents.{now:.6f}.{host}")
        self._event, self._scalar, self._flushed = Event, scalar, 0.0
        self._write(wall_time=now, file_version="brain.Event:2")
        start = SessionLog(status=SessionLog.START)
        self._write(wall_time=now, step=first_step, session_log=start)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write scalars by name; `seconds` since 1970 is when they were measured."""
        for name, value in values.items():
            summary = self._scalar(name, value)
            self._write(wall_time=seconds, step=step, summary=summary)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def _write(self, **fields: Any) -> None:
        self._file.write(self._event(**fields).SerializeToString())

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._file.close()
