"""The HTTP API and the page, as an ASGI application.

docs/serve.md lists the requests, their answers and the limits.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from jaxformer.decoding.request_queue import SMALL_REQUEST
from jaxformer.decoding.text_pipeline import TextResult
from jaxformer.serving.batching import (
    READY,
    Batcher,
    TooLargeError,
    UnavailableError,
)
from jaxformer.system.errors import InputError, NotFiniteError

Json = dict[str, Any]  # an object of JSON
PAGES = ("/", "page.html"), ("/page.css", "page.css"), ("/page.js", "page.js")
POLICY = b"default-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
)
# JSON escapes each letter of a piece in six bytes, and a Cyrillic piece has five.
BYTES_PER_PIECE = 32
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


class Api:
    """The application. `about` is added to the answer of /ready.

    Requests have to be sent to a host of LOOPBACK or of `hosts`, where "*" is any: a
    foreign page could ask a browser for a host name that leads to this server.
    """

    def __init__(
        self,
        batcher: Batcher,
        about: Json,
        *,
        hosts: Collection[str],
        examples: Sequence[str],
    ) -> None:
        self._batcher, self._about, self._limits = batcher, about, batcher.limits
        self._hosts, self._examples = LOOPBACK | set(hosts), list(examples)
        self._not_finite = 0  # requests whose scores were not numbers
        self._tokenising = ThreadPoolExecutor(2), ThreadPoolExecutor(1)
        folder = Path(__file__).parent
        routes = [
            *(Route(k, FileResponse(folder / v), methods=["GET"]) for k, v in PAGES),
            Route("/translate", self._translate, methods=["POST"]),
            Route("/attention", self._attention, methods=["POST"]),
            Route("/score", self._score, methods=["POST"]),
            Route("/examples", lambda _: JSONResponse(self._examples)),
            Route("/health", self._ready),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics_text),
        ]
        handlers = {
            HTTPException: self._refuse,
            InputError: lambda _, e: _error(400, str(e)),
            NotFiniteError: self._no_numbers,
            TooLargeError: lambda _, e: _error(413, str(e)),
            UnavailableError: lambda _, e: _error(503, str(e), {"Retry-After": "1"}),
            ClientDisconnect: lambda *_: _error(499, "only the metrics see this"),
            Exception: lambda *_: _error(500, "internal error; the log shows more"),
        }
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False
        self._paths = {route.path for route in routes}
        known = (f"{min(each.methods - {'HEAD'})} {each.path}" for each in routes)
        self._known = ", ".join(known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with HEADERS added; count and time it."""
        status, start = 500, time.monotonic()  # unless another status is sent

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        app = self._app
        if not self._is_own_host(host):
            error = f"this server does not answer for host {host[:99]!r}; start it with"
            app = _error(421, f"{error} --host_names=NAME")
        try:
            await app(scope, receive, send_with_headers)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            seconds = time.monotonic() - start
            metrics = self._batcher.metrics
            metrics.requests.labels(path, str(status)).inc()
            metrics.request_seconds.labels(path).observe(seconds)

    def _is_own_host(self, host: str) -> bool:
        with contextlib.suppress(ValueError):  # such as "[::1"
            return not self._hosts.isdisjoint((urlsplit(f"//{host}").hostname, "*"))
        return False

    async def _translate(self, request: Request) -> Response:
        body = await self._read(request)
        limits = {"max_n_best": self._about["n_best"], "tags": self._about["tags"]}
        given, *how = read_translate(body, **limits)
        found = await self._result(request, len(body), self._batcher.translate, given)
        return JSONResponse({"translations": [_best(each, *how) for each in found]})

    async def _attention(self, request: Request) -> Response:
        body = await self._read(request)
        pair = read_attention(body)
        found = await self._result(request, len(body), self._batcher.attention, *pair)
        values = found._asdict()
        for name in ("encoder", "decoder", "cross"):
            values[name] = np.rint(1000 * values[name]).astype(int).tolist()
        return JSONResponse(values)

    async def _score(self, request: Request) -> Response:
        body = await self._read(request)
        pair = read_attention(body)
        found = await self._result(request, len(body), self._batcher.score, *pair)
        probabilities = np.exp(found.log_probabilities).round(4).tolist()
        return JSONResponse({"target": found.pieces, "probabilities": probabilities})

    async def _ready(self, _: Request) -> Response:
        status = self._batcher.state
        if self._batcher.busy_seconds() > self._limits.request_timeout:
            status = "stalled"  # in one call of the translator
        code = 200 if status == READY else 503
        values = {"status": status, **self._about}
        if failures := self._not_finite:
            values["requests_without_finite_scores"] = failures
        done, of = self._batcher.compiled, self._batcher.programs
        if done < of:
            values["compiling"] = {"done": done, "of": of}
        return JSONResponse(values, code)

    async def _refuse(self, request: Request, error: HTTPException) -> Response:
        said, path = error.detail, request.url.path[:99]
        if error.status_code in (404, 405):
            said = f"there is no {request.method[:9]} {path}; there are {self._known}"
        return _error(error.status_code, said, error.headers)

    async def _no_numbers(self, _: Request, error: NotFiniteError) -> Response:
        self._not_finite += 1
        return _error(500, str(error))

    async def _metrics_text(self, _: Request) -> Response:
        text = generate_latest(self._batcher.metrics.registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _read(self, request: Request) -> bytes:
        """Read the body. Raises HTTPException for its type, its size or slowness."""
        media_type = request.headers.get("content-type", "").partition(";")[0]
        if media_type.strip().lower() != "application/json":
            raise HTTPException(415, "send JSON with Content-Type: application/json")
        most = BYTES_PER_PIECE * self._limits.max_request_pieces
        timeout = self._limits.request_timeout
        body = bytearray()
        try:
            async with asyncio.timeout(timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise HTTPException(413, f"the body exceeds {most:,} bytes")
        except TimeoutError:
            late = f"the body took longer than {timeout:g} seconds"
            raise HTTPException(408, late, {"Connection": "close"}) from None
        return bytes(body)

    async def _result(
        self, request: Request, size: int, queue: Callable[..., Future], *given: object
    ) -> object:
        """Call `queue` in a thread, which tokenises, and await the future it returns.

        Large bodies of `size` bytes are tokenised one at a time, so that small ones
        find a thread. Raises ClientDisconnect, and HTTPException if it takes too long;
        then the future is cancelled.
        """
        is_large = size > BYTES_PER_PIECE * SMALL_REQUEST
        queued = self._tokenising[is_large].submit(queue, *given)

        async def answer() -> object:
            return await asyncio.wrap_future(await asyncio.wrap_future(queued))

        timeout, first = self._limits.request_timeout, asyncio.FIRST_COMPLETED
        both = tuple(map(asyncio.ensure_future, (answer(), _disconnect(request))))
        try:
            done, _ = await asyncio.wait(both, timeout=timeout, return_when=first)
            if both[0] in done:
                return both[0].result()
            if done:
                raise ClientDisconnect
            raise HTTPException(504, f"no answer within {timeout:g} seconds")
        finally:
            for each in both:
                each.cancel()
            # A thread that has begun cannot be stopped; what it queues is cancelled.
            queued.add_done_callback(_cancel_result)


def _cancel_result(queued: Future) -> None:
    if not queued.cancelled() and queued.exception() is None:
        queued.result().cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _best(result: TextResult, n_best: int, has_sentences: bool) -> Json:
    """Return the best hypothesis; with n_best above 1 it has a list of the n best."""
    found = [each.summary() for each in result.hypotheses[:n_best]]  # or fewer
    best = found[0] if n_best == 1 else {**found[0], "n_best": found}
    if has_sentences:
        best["sentences"] = [
            [
                {
                    "source": source,
                    "source_tokens": len(own[0].source_pieces),
                    "translations": [each.summary() for each in own[:n_best]],
                }
                for source, own in line
            ]
            for line in result.lines
        ]
    return best


def _error(
    status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse({"error": sentence}, status, headers)


def read_translate(
    body: bytes, *, max_n_best: int, tags: Sequence[str]
) -> tuple[list[tuple], int, bool]:
    """Read {"text": ..., "n_best": 1, "prefix": ..., "phrases": [...], "tag": ...}.

    Text and prefix may be lists, and phrases then a list of lists; the tag is one of
    `tags`, and begins each text. Returns texts, each with its prefix and phrases,
    n_best, and whether "sentences" is true. Raises InputError.
    """
    keys = ("text", "n_best", "prefix", "phrases", "tag", "sentences")
    values = _read_object(body, keys)
    if type(has_sentences := values.get("sentences", False)) is not bool:
        raise InputError('"sentences" has to be true or false')
    sentences, tag = _strings(values, "text"), values.get("tag", "")
    if tag not in ("", *tags):
        known = f"; use one of {', '.join(tags)}" if tags else ""
        raise InputError(f'"tag" is not in the vocabulary{known}')
    if tag and any(each.lstrip().startswith(tuple(tags)) for each in sentences):
        raise InputError('"text" begins with a tag already; leave out "tag"')
    sentences = [tag + each for each in sentences]
    n_best = values.get("n_best", 1)
    if type(n_best) is not int or not 1 <= n_best <= max_n_best:
        raise InputError(f'"n_best" has to be an integer from 1 to {max_n_best}')
    is_list, count = isinstance(values["text"], list), len(sentences)
    prefixes, phrases = [""] * count, [()] * count
    if "prefix" in values:
        prefixes = _strings(values, "prefix")
        if isinstance(values["prefix"], list) != is_list or len(prefixes) != count:
            raise InputError(
                '"prefix" has to be a string like "text", or a list of equal length'
            )
    if "phrases" in values:
        phrases = values["phrases"] if is_list else [values["phrases"]]
        if not _are_lists_of_strings(phrases) or len(phrases) != count:
            raise InputError(
                '"phrases" has to be a list of strings, or one such list for each text'
            )
    return list(zip(sentences, prefixes, phrases, strict=True)), n_best, has_sentences


def read_attention(body: bytes) -> tuple[str, str]:
    """Read {"source": ..., "target": ...}, two strings. Raises InputError."""
    values = _read_object(body, ("source", "target"))
    for name in ("source", "target"):
        if not isinstance(values.get(name), str):
            raise InputError(f'"{name}" has to be a string')
    return values["source"], values["target"]


def _read_object(body: bytes, keys: Collection[str]) -> Json:
    try:
        values = json.loads(body.decode())
        json.dumps(values, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON in UTF-8 ({error})") from None
    if not isinstance(values, dict):
        raise InputError("the body has to be a JSON object")
    for key in values.keys() - set(keys):
        raise InputError(f"unknown key {key[:40]!r}; the keys are {', '.join(keys)}")
    return values


def _are_lists_of_strings(given: object) -> bool:
    return isinstance(given, list) and all(
        isinstance(each, list) and all(isinstance(phrase, str) for phrase in each)
        for each in given
    )


def _strings(values: Json, name: str) -> list[str]:
    given = values.get(name)
    strings = given if isinstance(given, list) else [given]
    if not all(isinstance(string, str) for string in strings):
        raise InputError(f'"{name}" has to be a string or a list of strings')
    return strings
