"""API keys: who may ask, and how often."""

import hmac
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxformer.system.errors import InputError

MINUTE = 60.0  # seconds


class RefusedError(Exception):
    """A refused request; the message says why, and `headers` when to ask again."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers


def read_keys(file: Path) -> dict[str, float]:
    """Read a key a line; after a tab its requests a minute, without it any number.

    Raises InputError for a file that cannot be read or is no such list.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"--api_keys={file} cannot be read: {error}") from None
    keys: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        match = re.fullmatch(r"([!-~]+)(\t[1-9][0-9]{0,8})?", line)
        if not match or match[1] in keys:  # no message shows a key
            raise InputError(
                f"line {number} of --api_keys={file} is no new key; write ASCII "
                "without spaces, and perhaps a tab and the requests allowed in a minute"
            )
        keys[match[1]] = float(match[2] or "inf")
    return keys


class Keys:
    """The keys of a server, and the requests of each in the last minute.

    `clock` returns seconds.
    """

    def __init__(
        self, limits: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._clock = limits, clock
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def check(self, given: str) -> None:
        """Count a request with a key. Raises RefusedError, with LibreTranslate's words.

        The time to compare two keys does not depend on where they differ.
        """
        if not given:
            error = "Please contact the server operator to get an API key"
            raise RefusedError(400, error)
        sent = given.encode()
        equal = [k for k in self._limits if hmac.compare_digest(k.encode(), sent)]
        if not equal:
            raise RefusedError(403, "Invalid API key")
        (key,), now = equal, self._clock()
        times, limit = self._times[key], self._limits[key]
        while times and times[0] <= now - MINUTE:
            times.popleft()
        if len(times) >= limit:
            late = math.ceil(times[0] + MINUTE - now)
            error = f"Slowdown: {limit:.0f} per 1 minute"
            raise RefusedError(429, error, **{"Retry-After": f"{late}"})
        if limit < math.inf:
            times.append(now)
