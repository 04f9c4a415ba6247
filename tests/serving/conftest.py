"""A translator without a model, and servers around it that tests can talk to."""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jaxformer.errors import InputError
from jaxformer.serving.app import About, Limits
from jaxformer.serving.server import Capacity, Service, listen, url

LAYERS, HEADS, BEAM = 3, 4, 4


class Found(NamedTuple):
    """A hypothesis."""

    text: str
    score: float
    log_probability: float
    tokens: int


class FakeTranslator:
    """Turns every word around, in as many steps as there are words.

    It waits in `advance` while `gate` is closed, and fails there with `fault`.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.begun: list[str] = []
        self.most = 0  # sentences in the search
        self._search: list[list] = []
        self._owner: int | None = None

    def submit(self, sentence, done, *, prefix="") -> None:
        self._require_one_thread()
        words = sentence.split()
        if len(words) > 50:
            raise InputError(f"the sentence has {len(words)} pieces, more than 50")
        self.begun.append(sentence)
        if not words:
            done([Found("", 0.0, 0.0, 0)])
            return
        text = f"{prefix} {turned(sentence)}".strip()
        found = [
            Found(f"{text}{'!' * n}", -0.5 - n, -1.5 - n, len(words) + 1)
            for n in range(BEAM)
        ]
        found[-1] = found[-1]._replace(score=-np.inf)  # an empty place
        self._search.append([len(words), done, found])
        self.most = max(self.most, len(self._search))

    def advance(self) -> bool:
        self._require_one_thread()
        self.gate.wait(20)
        if self.fault:
            raise self.fault
        for task in self._search:
            task[0] -= 1
        ended = [task for task in self._search if task[0] < 1]
        self._search = [task for task in self._search if task[0] >= 1]
        for _, done, found in ended:
            done(found)
        return bool(self._search)

    def attention(self, source, target):
        self._require_one_thread()
        sides = {
            "source": pieces(source),
            "target": pieces(target),
        }
        s, t = len(sides["source"]), len(sides["target"])
        return SimpleNamespace(
            **sides,
            encoder=weights(s, s),
            decoder=np.tril(weights(t, t)),
            cross=weights(t, s),
        )

    def _require_one_thread(self) -> None:
        here = threading.get_ident()
        self._owner = self._owner or here
        assert self._owner == here


def pieces(text: str) -> list[str]:
    """Cut words of more than five letters in two."""
    words = (f"\u2581{word}" for word in text.split())
    cut = ((word,) if len(word) < 7 else (word[:4], word[4:]) for word in words)
    return [*itertools.chain.from_iterable(cut), "</s>"]


def weights(queries: int, keys: int) -> np.ndarray:
    """Heads that look around their own place, the later ones more widely."""
    shape = (LAYERS, HEADS, queries, keys)
    layer, head, row, column = np.indices(shape)
    centre = row * (keys - 1) / max(queries - 1, 1) + 0.5 * layer
    logits = -np.abs(column - centre) / (0.15 + 0.8 * head)
    grown = np.exp(logits)
    return (grown / grown.sum(-1, keepdims=True)).astype(np.float32)


def turned(sentence: str) -> str:
    """What the fake translator makes of a sentence."""
    return " ".join(word[::-1] for word in sentence.split())


class Reply(NamedTuple):
    """An answer of a server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def values(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """What was wrong: the only thing in the answer."""
        assert list(self.values) == ["error"]
        return self.values["error"]


class Running:
    """A service in a thread of its own."""

    def __init__(self, service: Service, opened, translator) -> None:
        self.service, self.translator = service, translator
        self.url = url(opened)
        self.host, self.port = opened.getsockname()
        self.result: dict | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self.service.run()
        except BaseException as error:
            self.error = error

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers):
        """Send a request; a body that is not bytes is sent as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers = {"Content-Type": "application/json", **headers}
        method = method or ("GET" if body is None else "POST")
        with closing(http.client.HTTPConnection(self.host, self.port, 20)) as client:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, named, answer.read())

    def translate(self, text: Any, **more: Any) -> Reply:
        return self.ask("/translate", {"text": text, **more})

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels."""
        text = self.ask("/metrics").body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def until(self, happened: Callable[[], bool], seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end
            time.sleep(0.01)

    def until_ready(self) -> "Running":
        self.until(lambda: self.ask("/health").status == 200)
        return self

    def end(self) -> None:
        """Stop it and wait; what it failed of is in `error`."""
        self.service.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()


Serve = Callable[..., Running]


@pytest.fixture
def serve(caplog) -> Iterator[Serve]:
    """Start servers with a fake translator; those that still run are stopped.

    Nothing that they do may be an error to their libraries.
    """
    started: list[Running] = []

    def start(*, warm_up=(), ready=True, **given) -> Running:
        values = {
            "max_request_bytes": 1000, "max_sentences": 8, "request_timeout": 10.0,
            "max_batch": 4, "max_queue": 8, "shutdown_timeout": 10.0, **given,
        }  # fmt: skip
        split = [
            {name: values[name] for name in kind.__dataclass_fields__}
            for kind in (Limits, Capacity)
        ]
        translator = FakeTranslator()
        opened = listen("127.0.0.1", 0)
        service = Service(
            translator,
            opened,
            about=About(direction="en-de", n_best=BEAM),
            limits=Limits(**split[0]),
            capacity=Capacity(**split[1]),
            warm_up=warm_up,
        )
        if not ready:
            translator.gate.clear()
        running = Running(service, opened, translator)
        started.append(running)
        return running.until_ready() if ready else running

    yield start
    for running in started:
        running.translator.gate.set()
        running.end()
    libraries = ("asyncio", "uvicorn.error", "concurrent.futures")
    assert [each for each in caplog.records if each.name in libraries] == []
