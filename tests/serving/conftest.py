"""A translator without a model, and servers around it that tests can talk to."""

import http.client
import itertools
import json
import math
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

from jaxformer.config.languages import matching_codes
from jaxformer.decoding.forced import Attention, PairScore
from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.text_pipeline import Direction, TextResult
from jaxformer.serving.app import Site
from jaxformer.serving.batching import Limits
from jaxformer.serving.libretranslate import Languages
from jaxformer.serving.server import Service, listen
from jaxformer.system.errors import InputError, NotFiniteError

LAYERS, HEADS, BEAM = 3, 4, 4  # of the decoder
ENCODER_LAYERS = 2
EXAMPLES = ["a dog runs", "<i>two cats"]
NAMES = {"de": "German", "en": "English", "fr": "French", "zh": "Chinese"}
LANGUAGES = Languages(
    {
        "en": {code: Direction("en", "", f">{code}<") for code in ("de", "fr")},
        "zh": {"de": Direction("zh", ">zh<", ">de<")},
    },
    NAMES.__getitem__,
    lambda codes, text: sorted(
        ((code, 90.0 if (code == "en") == text.isascii() else 10.0) for code in codes),
        key=lambda each: -each[1],
    ),
    matching_codes,
)
LIMITS = {
    "max_request_pieces": 200, "max_queue": 1000,
    "request_timeout": 10.0, "shutdown_timeout": 10.0,
}  # fmt: skip


class FakeText(NamedTuple):
    """A text of the fake translator, in place of its tasks."""

    words: int
    text: str
    found: TextResult
    has_phrases: bool = False


class FakeTokenizer:
    """A piece is a word, or the end."""

    def encode(self, texts) -> list[list[str]]:
        return [[*text.split(), "</s>"] for text in texts]

    encode_target = encode


class FakeTranslator:
    """Reverses every word, in as many steps as there are words.

    It waits in `advance` and for its first program while `gate` is closed, and fails
    there with `fault`. After each program it waits for `more`.
    """

    options, tokenizer = SimpleNamespace(n_best=BEAM), FakeTokenizer()
    has_glossary = False
    tags: list[str]

    def __init__(self) -> None:
        self.gate, self.more = threading.Event(), threading.Event()
        self.more.set()
        self.fault: Exception | None = None
        self.begun: list[str] = []
        self.most = 0  # requests in the search
        self._search: list[list] = []
        self.threads: set[int] = set()  # that have called it

    @property
    def text(self):
        return self  # the pipeline, and so is the translator

    translator = text

    def compile(self):
        for number in range(5):
            yield number, 4
            (self.more if number else self.gate).wait(20)
            if self.fault:
                raise self.fault

    def tagged(self, text):
        return text

    def of_direction(self, direction):
        """It begins a translation with the target's tag."""
        begin = direction.target_tag
        return SimpleNamespace(tasks=lambda text, *_: self.tasks(text, begin, (), 0))

    def sentences(self, text):
        return re.split(r"\n|(?<=\.) ", text)

    def tasks(self, text, prefix, phrases, _) -> "FakeText":
        words = text.split()
        if max(map(len, map(str.split, [*text.splitlines(), ""]))) > 50:
            raise InputError(f"the sentence has {len(words)} tokens, more than 50")
        if not words:
            return FakeText(0, text, TextResult([Hypothesis("", 0.0, 0.0, 0)], [[]]))
        scores = (-0.5, -1.5, -2.5)  # the search found one too few

        def found(text: str, best: str) -> list[Hypothesis]:
            source = tokens(text)
            texts = [f"{best}{'!' * n}" for n in range(len(scores))]
            each = [(own, log_probabilities(own)) for own in map(tokens, texts)]
            return [
                Hypothesis(text, score, score - 1, len(source), source, *own)
                for text, score, own in zip(texts, scores, each, strict=True)
            ]

        lines = [
            [(each, found(each, reverse(each))[:-1]) for each in self.sentences(line)]
            for line in text.split("\n")
        ]
        whole = found(text, " ".join([prefix, reverse(text), *phrases]).strip())
        return FakeText(len(words), text, TextResult(whole, lines), bool(phrases))

    def submit(self, texts, done, failed, *, request) -> None:
        self.threads.add(threading.get_ident())
        self.begun += [each.text for each in texts]
        steps = max([0, *(each.words for each in texts)])
        if any("NaN" in each.text for each in texts):
            done = lambda _: failed(NotFiniteError("no numbers"))  # noqa: E731
        self._search.append([steps, done, [each.found for each in texts], request])
        self.most = max(self.most, len(self._search))

    @property
    def load(self) -> tuple[int, int]:
        return 0, sum(len(found) for _, _, found, _ in self._search)

    def cancel(self, request) -> None:
        self._search = [job for job in self._search if job[3] is not request]

    def advance(self) -> bool:
        self._wait()
        tasks, self._search = self._search, []
        for left, done, found, request in tasks:
            if left > 1:
                self._search.append([left - 1, done, found, request])
            else:
                done(found)
        return bool(self._search)

    has_attention = True

    def score(self, sources, targets) -> list[PairScore]:
        self.threads.add(threading.get_ident())
        return [PairScore(tokens(*targets), log_probabilities(tokens(*targets)))]

    def _wait(self) -> None:
        self.threads.add(threading.get_ident())
        self.gate.wait(20)
        if self.fault:
            raise self.fault

    forcing = SimpleNamespace(
        pairs=lambda sources, targets: [[*zip(sources, targets, strict=True)]]
    )

    def attention_of_parts(self, source, target):
        return [self.attention(*map(" ".join, (source[:-1], target[:-1])))]

    def attention(self, source, target):
        self.threads.add(threading.get_ident())
        source, target = tokens(source), tokens(target)
        s, t = len(source), len(target)
        own = weights(s, s)[:ENCODER_LAYERS]
        return Attention(source, target, own, weights(t, t), weights(t, s))


def read_markup(links_of, kind: str, text: str):
    """A document whose texts are between "|"; its message has the links of the last."""
    if "<" in text:
        raise InputError("line 1: no tag")

    def join(found):
        links = links_of(found[-1])
        return "|".join(each.text for each in found), [f"{kind} {links}"]

    return text.split("|"), join


def tokens(text: str) -> list[str]:
    """Cut words of more than five letters in two."""
    words = (f"\u2581{word}" for word in text.split())
    cut = ([word] if len(word) < 7 else [word[:4], word[4:]] for word in words)
    return [*itertools.chain(*cut), "</s>"]


def log_probabilities(pieces: list[str]) -> list[float]:
    return [math.log(1 / (index + 1)) for index in range(len(pieces))]


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

    def __init__(
        self, later, *, tags=(), languages=("en", "de"), site=None, **limits: float
    ) -> None:
        self.translator, self.later = FakeTranslator(), later
        self.translator.tags = [*tags]
        opened = listen("127.0.0.1", 0)
        own = {"hosts": (), "origins": (), "keys": None, "markup": read_markup}
        own |= {"languages": LANGUAGES, "examples": EXAMPLES, **(site or {})}
        self.address = opened.getsockname()
        self.service = Service(
            self.translator, opened, languages=languages, site=Site(**own),
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
        self.until(lambda: self.ask("/ready").status == 200)
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
            server.translator.more.set()
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
