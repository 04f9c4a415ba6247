"""The HTTP APIs and the pages, as an ASGI application.

docs/serve.md lists the requests of our API, their answers and the limits. openapi.json
also has those of LibreTranslate's API.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from jaxformer.decoding.forced import LinksOf
from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.request_queue import SMALL_REQUEST
from jaxformer.decoding.text_pipeline import TextResult
from jaxformer.serving.batching import READY, Batcher, TooLargeError, UnavailableError
from jaxformer.serving.bodies import (
    Json,
    read_attention,
    read_documents,
    read_form,
    read_json,
    read_translate,
)
from jaxformer.serving.keys import Keys, RefusedError
from jaxformer.serving.libretranslate import Join, Languages, Markup, read_call
from jaxformer.system.errors import InputError, NotFiniteError

PAGES = {
    "/": "page.html", "/docs": "docs.html", "/openapi.json": "openapi.json",
    **{f"/{name}": name for name in ("page.css", "page.js", "docs.js")},
}  # fmt: skip
POLICY = b"default-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
)
# JSON escapes each letter of a piece in six bytes, and a Cyrillic piece has five.
BYTES_PER_PIECE = 32
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
RETRY = {"Retry-After": "1"}  # seconds
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Who may ask a server, and what it says about itself.

    Requests have to be sent to a host of LOOPBACK or of `hosts`, where "*" is any: a
    foreign page could ask a browser for a host name that leads to this server. Pages
    of `origins`, where "*" is any, may ask it. `keys` None: everybody may translate.
    `markup` reads a document of a kind, and takes a function that finds the links
    between the pieces of a hypothesis, or None.
    """

    hosts: Collection[str]
    origins: Collection[str]
    keys: Keys | None
    languages: Languages
    markup: Callable[[LinksOf | None, str, str], tuple[list[str], Join]]
    examples: Sequence[str]


class Api:
    """The application. `about` is added to the answer of /ready."""

    def __init__(self, batcher: Batcher, about: Json, site: Site) -> None:
        self._batcher, self._about, self._limits = batcher, about, batcher.limits
        self._site, self._hosts = site, LOOPBACK | set(site.hosts)
        settings = site.languages.settings(has_keys=site.keys is not None)
        self._not_finite = 0  # requests whose scores were not numbers
        self._tokenising = ThreadPoolExecutor(2), ThreadPoolExecutor(1)
        # Documents, which take longer, have threads of their own.
        self._short, self._reading = ThreadPoolExecutor(2), ThreadPoolExecutor(2)
        self._writing = ThreadPoolExecutor(32)  # may wait for links
        folder = Path(__file__).parent
        routes = [
            *(_fixed(path, FileResponse(folder / PAGES[path])) for path in PAGES),
            Route("/translate", self._translate, methods=["POST"]),
            Route("/attention", self._attention, methods=["POST"]),
            Route("/score", self._score, methods=["POST"]),
            Route("/detect", self._detect, methods=["POST"]),
            _fixed("/languages", JSONResponse(site.languages.listed())),
            _fixed("/frontend/settings", JSONResponse(settings)),
            _fixed("/examples", JSONResponse(list(site.examples))),
            Route("/health", self._ready),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics_text),
        ]
        handlers = {
            HTTPException: self._refuse,
            InputError: lambda _, e: _error(400, str(e)),
            NotFiniteError: self._no_numbers,
            RefusedError: lambda _, e: _error(e.status, str(e), e.headers),
            TimeoutError: self._too_late,
            TooLargeError: lambda _, e: _error(413, str(e)),
            UnavailableError: lambda _, e: _error(503, str(e), RETRY),
            ClientDisconnect: lambda *_: _error(499, "only the metrics see this"),
            Exception: lambda *_: _error(500, "internal error; the log shows more"),
        }
        app = Starlette(False, routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        how = {"allow_methods": ["GET", "POST"], "allow_headers": ["Authorization"]}
        how["expose_headers"] = [*RETRY]
        # Around all else, so that a page can read each error of its requests.
        cors = partial(CORSMiddleware, allow_origins=site.origins, **how)
        self._app = cors(app) if site.origins else app
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
        values, size = await self._read(request)
        timeout = self._limits.request_timeout
        links_of = self._links_until(time.monotonic() + timeout)
        markup = partial(self._site.markup, links_of)
        async with asyncio.timeout(timeout):
            return JSONResponse(await self._answer(request, values, size, markup))

    async def _answer(
        self, request: Request, values: Json, size: int, markup: Markup
    ) -> Json:
        queue, run = self._batcher.translate, asyncio.get_running_loop().run_in_executor
        if values.keys() & {"q", "source", "target"}:  # LibreTranslate's
            languages = self._site.languages
            is_html = values.get("format") == "html"
            thread = self._reading if is_html else self._short
            call = await run(thread, read_call, values, languages, markup)
            tag = call.direction.tag
            given = [(tag + text, "", ()) for texts, _ in call.parts for text in texts]
            found = await self._result(request, size, queue, given, call.direction)
            every = [each.hypotheses for each in found]
            thread = self._writing if is_html else self._short
            return await run(thread, call.answer, every)
        if "markup" in values:
            texts, kind = read_documents(values)
            every = [partial(markup, kind, text) for text in texts]
            parts = [await run(self._reading, read) for read in every]
            given = [(text, "", ()) for own, _ in parts for text in own]
            left = iter(await self._result(request, size, queue, given))
            written = []
            for own, join in parts:
                best = [each.hypotheses[0] for each in islice(left, len(own))]
                document, messages = await run(self._writing, join, best)
                written.append({"text": document, "messages": messages})
            return {"translations": written}
        limits = {"max_n_best": self._about["n_best"], "tags": self._about["tags"]}
        given, *how = read_translate(values, **limits)
        found = await self._result(request, size, queue, given)
        return {"translations": [_best(each, *how) for each in found]}

    def _links_until(self, end: float) -> LinksOf | None:
        """Return what waits for the links of a hypothesis; call it in a thread.

        It raises TimeoutError after `end`, a time of `time.monotonic`.
        """

        def links_of(found: Hypothesis) -> list[tuple[int, int]]:
            links = self._batcher.links(found)
            try:
                return links.result(max(0.0, end - time.monotonic()))
            finally:
                links.cancel()

        return links_of if self._about["attention"] else None

    async def _detect(self, request: Request) -> Response:
        values, _ = await self._read(request)
        if not (text := values.get("q")) or not isinstance(text, str):
            raise InputError("Invalid request: missing q parameter")
        run = asyncio.get_running_loop().run_in_executor
        detect = self._site.languages.detected
        async with asyncio.timeout(self._limits.request_timeout):
            return JSONResponse(await run(self._short, detect, text))

    async def _attention(self, request: Request) -> Response:
        given, size = await self._read(request)
        pair = read_attention(given)
        found = await self._result(request, size, self._batcher.attention, *pair)
        values = found._asdict()
        for name in ("encoder", "decoder", "cross"):
            values[name] = np.rint(1000 * values[name]).astype(int).tolist()
        return JSONResponse(values)

    async def _score(self, request: Request) -> Response:
        given, size = await self._read(request)
        pair = read_attention(given)
        found = await self._result(request, size, self._batcher.score, *pair)
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
        return JSONResponse(values, code, None if code == 200 else RETRY)

    async def _refuse(self, request: Request, error: HTTPException) -> Response:
        said, path = error.detail, request.url.path[:99]
        if error.status_code in (404, 405):
            said = f"there is no {request.method[:9]} {path}; there are {self._known}"
        return _error(error.status_code, said, error.headers)

    async def _too_late(self, *_: object) -> Response:
        seconds = self._limits.request_timeout
        return _error(504, f"no answer within {seconds:g} seconds")

    async def _no_numbers(self, _: Request, error: NotFiniteError) -> Response:
        self._not_finite += 1
        return _error(500, str(error))

    async def _metrics_text(self, _: Request) -> Response:
        text = generate_latest(self._batcher.metrics.registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _read(self, request: Request) -> tuple[Json, int]:
        """Read an object, or a form or query as one, and count the bytes of the body.

        Raises RefusedError for a key or a page, InputError for the body, and
        HTTPException for its type, its size or slowness.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0]
        media_type, query = media_type.strip().lower(), request.url.query
        is_form = media_type == FORM or (query and not media_type)
        if not is_form and media_type != "application/json":
            raise HTTPException(
                415, f"send JSON with Content-Type: application/json, or {FORM}"
            )
        if is_form:
            self._require_own_page(request)
        body = await self._body(request)
        values = read_form(body, query) if is_form else read_json(body)
        key = values.pop("api_key", "")
        if keys := self._site.keys:
            header = request.headers.get("authorization", "")
            scheme, _, bearer = header.partition(" ")
            keys.check(bearer if scheme.lower() == "bearer" else str(key or ""))
        return values, len(body)

    def _require_own_page(self, request: Request) -> None:
        """Refuse a form of a foreign page, which browsers send without asking."""
        origin, host = request.headers.get("origin", ""), request.headers.get("host")
        allowed = {"", f"http://{host}", f"https://{host}", *self._site.origins}
        if not allowed & {origin, "*"}:
            error = f"pages of {origin[:99]!r} may not ask; start the server with"
            raise RefusedError(403, f"{error} --origins=ORIGIN")

    async def _body(self, request: Request) -> bytes:
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
        find a thread. Raises ClientDisconnect, and TimeoutError if it takes too long;
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
            raise TimeoutError
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


def _fixed(path: str, response: Response) -> Route:
    return Route(path, response, methods=["GET"])


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
