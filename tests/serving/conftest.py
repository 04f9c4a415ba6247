"""A translator without a model, and servers around it that tests can talk to."""

import http.client
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxformer.decoding.forced import Attention
from jaxformer.decoding.translate import Hypothesis
from jaxformer.errors import InputError
from jaxformer.serving.batching import Limits
from jaxformer.serving.server import Service, listen

LAYERS, HEADS, BEAM = 3, 4, 4
LIMITS = {
    "max_request_bytes": 10_000, "max_sentences": 8, "max_batch": 4, "max_queue": 8,
    "request_timeout": 10.0, "shutdown_timeout": 10.0,
}  # fmt: skip


class FakeTranslator:
    """Reverses every word, in as many steps as there are words.

    It waits in `advance` while `gate` is closed, and fails there with `fault`.
    """

    options = SimpleNamespace(n_best=BEAM)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.fault: Exception | None = None
        self.begun: list[str] = []
        self.most = 0  # sentences in the search
        self._search: list[list] = []
        self.threads: set[int] = set()  # that have called it

    def submit(self, sentence, done, *, prefix="") -> None:
        self.threads.add(threading.get_ident())
        words = sentence.split()
        if len(words) > 50:
            raise InputError(f"the sentence has {len(words)} tokens, more than 50")
        self.begun.append(sentence)
        if not words:
            done([Hypothesis("", 0.0, 0.0, 0)])
            return
        text = f"{prefix} {reverse(sentence)}".strip()
        scores = (-0.5, -1.5, -2.5, -np.inf)  # the search found one too few
        found = [
            Hypothesis(f"{text}{'!' * n}", score, score - 1, len(words) + 1)
            for n, score in enumerate(scores)
        ]
        self._search.append([len(words), done, found])
        self.most = max(self.most, len(self._search))

    def advance(self) -> bool:
        self.threads.add(threading.get_ident())
        self.gate.wait(20)
        if self.fault:
            raise self.fault
        tasks, self._search = self._search, []
        for left, done, found in tasks:
            if left > 1:
                self._search.append([left - 1, done, found])
            else:
                done(found)
        return bool(self._search)

    def attention(self, source, target):
        self.threads.add(threading.get_ident())
        source, target = tokens(source), tokens(target)
        s, t = len(source), len(target)
        return Attention(source, target, weights(s, s), weights(t, t), weights(t, s))


def tokens(text: str) -> list[str]:
    """Cut words of more than five letters in two."""
    words = (f"\u2581{word}" for word in text.split())
    cut = ([word] if len(word) < 7 else [word[:4], word[4:]] for word in words)
    return [*itertools.chain(*cut), "</s>"]


def weights(queries: int, keys: int) -> np.ndarray:
    """The attention of the fake translator, whatever the texts are."""
    return np.random.default_rng(0).dirichlet(np.ones(keys), (LAYERS, HEADS, queries))


def reverse(sentence: str) -> str:
    return " ".join(word[::-1] for word in sentence.split())


class Reply(NamedTuple):
    """An answer of a server."""

    status: int
    headers: Mapping[str, str]
    text: str
    values: Any  # of JSON


class Server:
    """A service; `later` calls functions in threads, `ended` is its result."""

    def __init__(self, later, *, warm_up=(), **limits: float) -> None:
        self.translator, self.later = FakeTranslator(), later
        opened = listen("127.0.0.1", 0)
        self.address = opened.getsockname()
        self.service = Service(
            self.translator, opened, direction="en-de", warm_up=warm_up,
            limits=Limits(**LIMITS | limits),
        )  # fmt: skip
        self.ended: Future = later(self.service.run_until_stopped)

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers):
        """Send a request; a body that is not bytes is sent as JSON."""
        if body is not None:
            headers = {"Content-Type": "application/json", **headers}
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        with closing(http.client.HTTPConnection(*self.address, 20)) as client:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            text, kind = answer.read().decode(), answer.headers["content-type"]
            values = json.loads(text) if kind == "application/json" else None
            return Reply(answer.status, answer.headers, text, values)

    def translate(self, text: Any, **more: Any) -> Reply:
        return self.ask("/translate", {"text": text, **more})

    def queue(self, *texts: Any) -> list[Future]:
        """Ask for translations in other threads; return when all sentences wait."""
        futures = [self.later(self.translate, text) for text in texts]
        count = sum(1 if isinstance(text, str) else len(text) for text in texts)
        self.until(lambda: self.metric("queue_sentences") == count)
        return futures

    def metric(self, sample: str) -> float:
        pattern = rf"^jaxformer_{re.escape(sample)} (\S+)$"
        found = re.search(pattern, self.ask("/metrics").text, re.M)
        return float(found[1]) if found else 0.0

    def until(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not happened():
            assert time.monotonic() < end
            time.sleep(0.01)

    def until_ready(self) -> "Server":
        self.translator.gate.set()
        self.until(lambda: self.ask("/health").status == 200)
        return self


@pytest.fixture
def start(caplog) -> Iterator[Callable[..., Server]]:
    """Start servers; stop them afterwards. Their libraries must log no error."""
    with ThreadPoolExecutor(64) as pool:
        started: list[Server] = []

        def run(**options: Any) -> Server:
            started.append(Server(pool.submit, **options))
            return started[-1]

        yield run
        for server in started:
            server.translator.gate.set()
            server.service.stop()
            server.ended.exception(20)
            assert len(server.translator.threads) <= 1
    libraries = ("asyncio", "uvicorn.error", "concurrent.futures")
    assert [each for each in caplog.records if each.name in libraries] == []


@pytest.fixture
def serve(start) -> Callable[..., Server]:
    """Start servers and wait until they are ready."""
    return lambda **limits: start(**limits).until_ready()


@pytest.fixture
def busy(serve) -> Callable[..., tuple[Server, Future]]:
    """Start servers that are stuck in one sentence, whose reply is returned, too."""

    def run(sentence: str = "first", **limits: Any) -> tuple[Server, Future]:
        server = serve(**limits)
        server.translator.gate.clear()
        reply = server.later(server.translate, sentence)
        server.until(lambda: server.translator.begun == [sentence])
        return server, reply

    return run
