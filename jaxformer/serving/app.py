"""The HTTP API and the page, as an ASGI application.

    GET  /           the page
    POST /translate  {"text": a sentence or a list, "n_best": 1, "prefix": ...}
                     -> {"translations": [{"text", "score", "log_probability",
                        "tokens"}, ...]}, with "n_best": [...] in each if it is above 1
    POST /attention  {"source", "target"} -> pieces, and weights in thousandths
    GET  /health     200 if it translates, else 503
    GET  /metrics    for Prometheus

Whatever goes wrong is {"error": one sentence} with a status that fits.
"""

import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxformer.decoding.translate import Attention, Hypothesis
from jaxformer.errors import InputError
from jaxformer.serving.batching import (
    READY,
    Batcher,
    QueueFullError,
    UnavailableError,
)
from jaxformer.serving.bodies import TooManyError, read_pair, read_translate
from jaxformer.serving.metrics import CONTENT_TYPE, Metrics
from jaxformer.serving.page import Page

CLIENT_GONE = 499  # as nginx calls it; only metrics see it
SOON = {"Retry-After": "1"}  # seconds
PATHS = ("/", "/translate", "/attention", "/health", "/metrics")
THOUSANDTHS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may take."""

    max_request_bytes: int
    max_sentences: int  # in a request
    request_timeout: float  # seconds to read it, and again to answer it


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What is served."""

    direction: str  # such as "en-de"
    n_best: int  # as many candidates may be asked for


class Api:
    """The routes; `batcher` does the work."""

    def __init__(
        self, batcher: Batcher, metrics: Metrics, limits: Limits, about: About
    ) -> None:
        self._batcher, self._metrics = batcher, metrics
        self._limits, self._about = limits, about
        self._page = Page.read()

    def application(self) -> Starlette:
        """Build the ASGI application."""
        app = Starlette(
            routes=[
                Route("/", self.page),
                Route("/translate", self.translate, methods=["POST"]),
                Route("/attention", self.attention, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ],
            middleware=[Middleware(_Watched, metrics=self._metrics)],
            exception_handlers={
                HTTPException: _refuse,
                InputError: _refuse_input,
                QueueFullError: _refuse_for_now,
                UnavailableError: _refuse_for_now,
                ClientDisconnect: _forget,
                Exception: _own_up,
            },
        )
        app.router.redirect_slashes = False
        return app

    async def page(self, _: Request) -> Response:
        """Give the page, which may load nothing from anywhere else."""
        return Response(
            self._page.html,
            media_type="text/html",
            headers={"Content-Security-Policy": self._page.policy},
        )

    async def translate(self, request: Request) -> Response:
        """Translate one sentence or several."""
        asked = read_translate(
            await self._body(request),
            max_sentences=self._limits.max_sentences,
            most_candidates=self._about.n_best,
        )
        found = await self._answer(
            request, self._batcher.translate(asked.sentences, asked.prefixes)
        )
        return JSONResponse(
            {"translations": [_translation(each, asked.n_best) for each in found]}
        )

    async def attention(self, request: Request) -> Response:
        """Show the attention of all heads for a pair."""
        pair = read_pair(await self._body(request))
        (found,) = await self._answer(
            request, [self._batcher.attention(pair.source, pair.target)]
        )
        return Response(  # megabytes for long pairs
            await run_in_threadpool(_attention_json, found),
            media_type="application/json",
        )

    async def health(self, _: Request) -> Response:
        """Say whether it translates."""
        status = self._batcher.state
        if self._batcher.busy_seconds() > self._limits.request_timeout:
            status = "stalled"  # in one call into the model
        return JSONResponse(
            {"status": status, **dataclasses.asdict(self._about)},
            200 if status == READY else 503,
        )

    async def metrics(self, _: Request) -> Response:
        """Give the counters."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _body(self, request: Request) -> bytes:
        """Read the body of a request. Raises HTTPException for one that is no good."""
        kind, _, options = request.headers.get("content-type", "").partition(";")
        charset = options.strip().lower().replace('"', "")
        if kind.strip().lower() != "application/json" or charset not in (
            "", "charset=utf-8",
        ):  # fmt: skip
            raise HTTPException(
                415, "the body has to be JSON; send Content-Type: application/json"
            )
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "the body has to be sent uncompressed")
        most = self._limits.max_request_bytes
        too_large = HTTPException(413, f"the body has more than {most:,} bytes")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.request_timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise HTTPException(
                408,
                f"the body took longer than {self._limits.request_timeout:g} seconds",
                {"Connection": "close"},
            ) from None
        return bytes(body)

    async def _answer(self, request: Request, futures: Sequence[Future]) -> list[Any]:
        """Await the results, unless it takes too long or the client goes away.

        Then what has not been begun is dropped.
        """
        work = asyncio.gather(*map(asyncio.wrap_future, futures))
        work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                (work, gone),
                timeout=self._limits.request_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work.done():
                return work.result()
            if gone.done():
                raise ClientDisconnect
            raise HTTPException(
                504,
                f"there was no answer in {self._limits.request_timeout:g} seconds",
            )
        finally:
            for each in (work, gone):
                each.cancel()
            for future in futures:  # one may have failed; nobody wants the others
                future.cancel()


class _Watched:
    """Counts and times requests; forbids that answers are kept or guessed at."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 500, time.monotonic()  # unless another one is sent

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_FOR_ALL]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self._metrics.request(path, status, time.monotonic() - start)


_FOR_ALL = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


# What goes wrong ------------------------------------------------------------------


def _refuse(request: Request, error: HTTPException) -> Response:
    sentence = error.detail
    if error.status_code == 404:
        sentence = f"there is nothing here; there are {', '.join(PATHS)}"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        sentence = f"{request.method} is not for this address, only {allowed}"
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


def _refuse_input(_: Request, error: InputError) -> Response:
    status = 413 if isinstance(error, TooManyError) else 400
    return JSONResponse({"error": str(error)}, status)


def _refuse_for_now(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 503, SOON)


def _forget(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # for the metrics; nobody reads it


def _own_up(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": "the server has a fault, which its log shows"}, 500)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Answers --------------------------------------------------------------------------


def _translation(hypotheses: Sequence[Hypothesis], n_best: int) -> dict[str, Any]:
    """The best of them, and if more are wanted the n best, itself included."""
    found = [
        {
            "text": each.text,
            "score": each.score,
            "log_probability": each.log_probability,
            "tokens": each.tokens,
        }
        for each in hypotheses[:n_best]
        if math.isfinite(each.score)  # a search may have found fewer
    ]
    return found[0] if n_best == 1 else {**found[0], "n_best": found}


def _attention_json(found: Attention) -> bytes:
    weights = {
        name: np.rint(getattr(found, name) * THOUSANDTHS).astype(int)
        for name in ("encoder", "decoder", "cross")
    }
    answer = {
        "source": found.source,
        "target": found.target,
        **{name: values.tolist() for name, values in weights.items()},
    }
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
