"""The lock of a run folder on an object store: a small file there.

Its owner renews it every 10 seconds. If it is not renewed for 30 seconds, the owner was
killed, and another process takes it over.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from jaxformer.remote.object_store import Store
from jaxformer.system.errors import InputError

log = logging.getLogger(__name__)

LOCK = ".lock"
_RENEWAL = 10.0  # seconds between two signs of life of an owner


class RemoteLock:
    """The lock of a folder of a store, for one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = ""  # in the lock while this process holds it

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock, or held it until it was taken over."""
        return bool(self._name)

    def require_held(self) -> None:
        """Raise InputError if another process has taken the lock over."""
        if self._name and self._content().get("name") != self._name:
            raise InputError(
                f"{self._store.url} was taken over by {self._owner()}, because this "
                "process could not renew its lock; what it wrote since is not published"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in the block. Raises InputError that names its owner."""
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        owner = f"process {os.getpid()} on {socket.gethostname()} since {since}"
        name, end = uuid.uuid4().hex, threading.Event()

        def content(renewals: int) -> bytes:
            found = {"owner": owner, "name": name, "renewals": renewals}
            return json.dumps(found).encode()

        def renew() -> None:
            renewals, files, url = 0, self._store.files, self._store.at(LOCK)
            while not end.wait(_RENEWAL):
                renewals += 1
                # It may be offline for a while. A late repetition could overwrite the
                # lock of another process.
                with contextlib.suppress(Exception):
                    if json.loads(files.cat_file(url)).get("name") != name:
                        return
                    files.pipe_file(url, content(renewals))

        if not self._store.create(LOCK, content(0)):
            self._take_over(content(0))
        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        self._name = name
        try:
            yield
        finally:
            self._name = ""
            end.set()
            thread.join()
            if self._content().get("name") == name:
                self._store.remove(LOCK)

    def _content(self) -> dict[str, Any]:
        """Return what is in the lock, {} without one."""
        try:
            return dict(json.loads(self._store.read(LOCK)))
        except (FileNotFoundError, ValueError, TypeError):
            return {}

    def _owner(self) -> str:
        return self._content().get("owner", "another process")

    def _take_over(self, content: bytes) -> None:
        """Replace the lock of a process that was killed. Raises InputError."""
        before = self._content()
        log.info("%s: finding out whether its owner is alive", self._store.url)
        time.sleep(3 * _RENEWAL)
        if self._content() == before:
            self._store.remove(LOCK)
        is_ours = self._store.create(LOCK, content)
        if is_ours:
            time.sleep(_RENEWAL / 5)  # another one may have removed it as well
            is_ours = self._content() == json.loads(content)
        if not is_ours:
            raise InputError(
                f"{self._store.url} is in use by {self._owner()}; wait until it ends, "
                "or use another folder"
            )
