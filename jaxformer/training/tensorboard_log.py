"""TensorBoard's event files, written by the calling thread.

The writers of tensorboardX do not do on a full disk: SummaryWriter's thread ends with a
traceback, and training then blocks for ever; EventsWriter does not close its file.
"""

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path


class TensorBoardLog:
    """One event file; raises OSError where it cannot be written."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Begin a file in which `first_step` and later steps replace earlier files'."""
        # Imported here: tensorboardX imports torch where it is installed.
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import scalar

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        # A relative path that begins with gs: or s3: would be one of a store.
        self._file = RecordWriter(str(folder.absolute() / name))
        self._event, self._scalar = Event, scalar
        self._write(wall_time=time.time(), file_version="brain.Event:2")
        start = SessionLog(status=SessionLog.START)
        self._write(wall_time=time.time(), step=first_step, session_log=start)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write scalars by name; `seconds` since 1970 is when they were measured."""
        for name, value in values.items():
            summary = self._scalar(name, value)
            self._write(wall_time=seconds, step=step, summary=summary)
        self._file.flush()

    def close(self) -> None:
        """Close the file; what the disk has no room for is lost."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, **fields: object) -> None:
        self._file.write(self._event(**fields).SerializeToString())
