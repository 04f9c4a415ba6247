"""From an open socket to the last answer: uvicorn around the API."""

import asyncio
import contextlib
import functools
import json
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxformer.decoding.translate import Translator
from jaxformer.errors import InputError
from jaxformer.serving.app import About, Api, Limits
from jaxformer.serving.batching import Batcher
from jaxformer.serving.metrics import Metrics

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be taken
KEEP_ALIVE = 60  # seconds that a connection may be silent between two requests
LAST_WORDS = 2.0  # seconds for clients to take the answers that end the service


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How much is done at a time, and how long the end may take."""

    max_batch: int  # sentences in the search
    max_queue: int  # sentences that wait
    shutdown_timeout: float  # seconds to finish what was accepted


def listen(host: str, port: int) -> socket.socket:
    """Open a port for connections; 0 is any free one.

    Raises InputError if it cannot be had.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port={port} is no port; choose one from 1 to 65535, or 0")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(
            f"--host={host} is not known ({error}); use an address of this machine, "
            "such as 127.0.0.1"
        ) from error
    opened = socket.socket(family, kind)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise InputError(
            f"cannot listen on --host={host} --port={port} ({error.strerror}); choose "
            "another port, or 0 for any that is free"
        ) from error
    return opened


def url(opened: socket.socket) -> str:
    """Where a browser finds an open socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class Service:
    """A translator that answers on an open socket until it is asked to stop.

    `warm_up` are groups of sentences that it translates before it says it is ready.
    """

    def __init__(
        self,
        translator: Translator,
        opened: socket.socket,
        *,
        about: About,
        limits: Limits,
        capacity: Capacity,
        warm_up: Sequence[Sequence[str]],
    ) -> None:
        self._metrics = metrics = Metrics()
        self.has_ended = False  # the thread of the translator, with the rest
        self._about, self._socket = about, opened
        self._batcher = batcher = Batcher(
            translator,
            max_batch=capacity.max_batch,
            max_queue=capacity.max_queue,
            warm_up=warm_up,
            observer=metrics,
            on_failure=self.stop,
        )
        metrics.watch(
            "queue_sentences", "Sentences that wait.", lambda: batcher.waiting
        )
        metrics.watch(
            "search_sentences", "Sentences in the search.", lambda: batcher.in_search
        )
        config = uvicorn.Config(
            Api(batcher, metrics, limits, about).application(),
            http=functools.partial(_Protocol, limits.request_timeout),
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            log_level="error",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=math.ceil(capacity.shutdown_timeout + LAST_WORDS),
        )
        self._server = _Server(config, batcher, capacity.shutdown_timeout)

    def run(self) -> dict[str, float]:
        """Serve until SIGTERM, Ctrl-C or `stop`; returns what was done.

        Raises what the translator failed of, if it did.
        """
        start = time.monotonic()
        logger.info(
            "serving: %s on %s, as soon as it is warm",
            self._about.direction,
            url(self._socket),
        )
        self._batcher.start()
        self._server.run(sockets=[self._socket])
        self.has_ended = self._batcher.stop(LAST_WORDS)
        if not self.has_ended:
            logger.warning("the model is still at work; its last step is given up")
        if self._batcher.error is not None:
            raise self._batcher.error
        if self._server.force_exit:
            raise KeyboardInterrupt
        return {
            "requests": self._metrics.answered,
            "sentences": self._metrics.sentences,
            "seconds": round(time.monotonic() - start, 1),
        }

    def stop(self) -> None:
        """Ask it to stop, from any thread."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's server, which ends well when it is asked to, and in bounded time."""

    def __init__(
        self, config: uvicorn.Config, batcher: Batcher, shutdown_timeout: float
    ) -> None:
        super().__init__(config)
        self._batcher, self._shutdown_timeout = batcher, shutdown_timeout

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and Ctrl-C as requests to stop; uvicorn's would then die."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        both = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in both}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and finish what was accepted, for a while."""
        logger.info(
            "stopping: %d in the search and %d waiting are finished first, for up to "
            "%g s",
            self._batcher.in_search,
            self._batcher.waiting,
            self._shutdown_timeout,
        )
        end = asyncio.get_running_loop().call_later(
            self._shutdown_timeout, self._batcher.abandon
        )
        await super().shutdown(sockets)
        end.cancel()


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, which also answers in JSON where there is no request yet."""

    def __init__(self, head_timeout: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timeout = head_timeout  # seconds, from the first byte
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take some bytes, and wait for the rest of a head that is not whole."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget_head()
        elif self._head_due is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget_head()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(400, "this is not a whole HTTP request")

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(self._head_timeout, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _head_is_late(self) -> None:
        self._refuse(408, f"no whole request came in {self._head_timeout:g} seconds")

    def _refuse(self, status: int, sentence: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": sentence}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
