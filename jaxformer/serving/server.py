"""Run the API with uvicorn until it is asked to stop."""

import asyncio
import logging
import math
import signal
import socket
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxformer.decoding.request_queue import RequestQueue
from jaxformer.serving.app import Api, Site
from jaxformer.serving.batching import MAX_ATTENTION_PIECES, Batcher, Limits
from jaxformer.system.errors import InputError

logger = logging.getLogger(__name__)

PROBE_SECONDS = 0.2  # between two interim responses
LAST_ANSWERS = 2.0  # seconds to send the answers that end the service


def listen(host: str, port: int) -> socket.socket:
    """Open a port for connections; 0 is any free one. Raises InputError."""
    try:
        if port > 65535:  # getaddrinfo would take its last 16 bits
            raise OSError("ports end at 65535")
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        reason = error.args[-1].partition(" (while")[0]  # repeats the address
        raise InputError(
            f"cannot listen on host {host}, port {port} ({reason}); choose an address "
            "of this machine and another port, or port 0 for any that is free"
        ) from error


class _StrictConnection(h11.Connection):
    """Refuses heads that a proxy in front of the server may read otherwise than h11."""

    def next_event(self) -> object:
        """Return the next event. Raises RemoteProtocolError, which ends it."""
        is_head = self.their_state is h11.IDLE
        before = self.trailing_data[0] if is_head else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = before[: len(before) - len(self.trailing_data[0])]
            lengths = {b"content-length", b"transfer-encoding"}
            if (
                head.count(b"\n") != head.count(b"\r\n")
                or event.http_version not in (b"1.0", b"1.1")
                or lengths <= {name for name, _ in event.headers}
            ):
                self._request_method = None  # so that a 400 to HEAD may have a body
                raise h11.RemoteProtocolError("ambiguous head")
        return event


class _Http(H11Protocol):
    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named)
        self.conn = _StrictConnection(h11.SERVER, 2**16)  # bytes of a head, as uvicorn

    def eof_received(self) -> bool:
        """Return whether a client that sends nothing more waits for an answer.

        If so, the connection stays open until the answer is sent.
        """
        has_request = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        waits = has_request and not self.cycle.response_complete
        if waits:
            self.cycle.keep_alive = False
            self._probe()
        return waits

    def _probe(self) -> None:
        """Send interim responses until the answer: writing fails for a lost client."""
        if self.cycle.response_started or self.transport.is_closing():
            return
        if self.conn.their_http_version == b"1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(PROBE_SECONDS, self._probe)


class Service(uvicorn.Server):
    """A translator that answers on an open socket until it is asked to stop.

    `languages` are those of sources and of translations, such as "en".
    """

    def __init__(
        self,
        requests: RequestQueue,
        opened: socket.socket,
        *,
        languages: tuple[str, str],
        limits: Limits,
        site: Site,
    ) -> None:
        self._opened, self._direction = opened, "-".join(languages)
        self.batcher = Batcher(requests, limits, on_failure=self.stop)
        self._idle: dict = {}  # connections without a request, and their last request
        about = {"direction": self._direction, "n_best": requests.text.options.n_best}
        about["languages"] = [code.replace("_", "-") for code in languages]  # as HTML
        about["tags"] = requests.text.tags
        about["attention"] = requests.translator.has_attention
        about["api_keys"] = site.keys is not None
        about["pair_tokens"] = MAX_ATTENTION_PIECES
        config = uvicorn.Config(
            Api(self.batcher, about, site), http=_Http,
            ws="none", lifespan="off", log_config=None, log_level="error",
            timeout_keep_alive=60, timeout_notify=limits.request_timeout,
            callback_notify=self._close_idle_connections,
            timeout_graceful_shutdown=math.ceil(limits.shutdown_timeout + LAST_ANSWERS),
        )  # fmt: skip
        super().__init__(config)

    def run_until_stopped(self) -> dict[str, float]:
        """Serve until SIGTERM, Ctrl-C or `stop`; returns what was done.

        Raises the translator's exception if it failed, KeyboardInterrupt after a
        second Ctrl-C.
        """
        self.run(sockets=[self._opened])
        self.batcher.stop()
        self.batcher.join(LAST_ANSWERS)
        if self.batcher.error is not None:
            raise self.batcher.error
        if self.force_exit:
            raise KeyboardInterrupt
        registry = self.batcher.metrics.registry
        return {
            "requests": self.server_state.total_requests,
            "sentences": int(registry.get_sample_value("jaxformer_sentences_total")),
        }

    def stop(self) -> None:
        """Ask the service to stop, from any thread."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on SIGTERM and Ctrl-C; uvicorn's own method raises them again later."""
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Log the address, after signals are handled, and start to compile."""
        host, port = self._opened.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        logger.info("serving: %s on %s, once it is compiled", self._direction, address)
        self.batcher.start()
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections; finish accepted requests within the timeout."""
        timeout = self.batcher.limits.shutdown_timeout
        logger.info("stopping: accepted requests are finished within %g s", timeout)
        end = asyncio.get_running_loop().call_later(timeout, self.batcher.stop)
        await super().shutdown(sockets)
        end.cancel()

    async def _close_idle_connections(self) -> None:
        """Close connections without a request since the last call.

        uvicorn has no timeout for a connection's first request or a request's head.
        """
        idle = {
            each: each.cycle
            for each in self.server_state.connections
            if each.cycle is None or each.cycle.response_complete
        }
        for connection, _ in idle.items() & self._idle.items():
            connection.transport.close()
        self._idle = idle
