"""Ask a server ten thousand times at once, and show that no answer is lost or mixed up.

    python benchmarks/load.py --workdir=runs/m30k --sentences=test.en.gz
        [--requests=10000] [--clients=64] [--distinct=1000] [--seed=0]
    python benchmarks/load.py --url=http://127.0.0.1:8000/ --sentences=test.en.gz

starts `--mode=serve` on a free port, or talks to the server at --url. First each
distinct sentence is translated alone: that is what its answer has to be. Then that many
clients ask for them in random order, each the next one as soon as it has its answer.
Prints throughput and latency, then the same as a line of JSON. The exit code is 0 only
if every request was answered with the translation of its own sentence.
"""

import argparse
import collections
import contextlib
import gzip
import http.client
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600  # seconds for a server to get ready
TIMEOUT = 120  # seconds for an answer
RIGHT, MIXED_UP, DIFFERENT, LOST = "right", "mixed up", "different", "lost"


class LoadError(Exception):
    """The server cannot be measured; the message says why."""


class Client:
    """One connection, kept open as long as the server keeps it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=TIMEOUT
        )

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an address."""
        return self._ask("GET", path)

    def translate(self, sentence: str) -> tuple[int, str]:
        """Status and translation, or complaint."""
        body = json.dumps({"text": sentence}).encode()
        status, text = self._ask(
            "POST", "/translate", body, {"Content-Type": "application/json"}
        )
        values = json.loads(text)
        if status != 200:
            return status, values["error"]
        return status, values["translations"][0]["text"]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, *request) -> tuple[int, str]:
        try:
            self._connection.request(*request)
            answer = self._connection.getresponse()
            return answer.status, answer.read().decode()
        except BaseException:
            self._connection.close()  # the next request opens another
            raise


@dataclass
class Outcome:
    """What became of the requests."""

    kinds: collections.Counter = field(default_factory=collections.Counter)
    statuses: collections.Counter = field(default_factory=collections.Counter)
    latencies: list[float] = field(default_factory=list)  # seconds, as they came
    examples: list[str] = field(default_factory=list)  # what went wrong, some of it
    seconds: float = 0.0


def judge(sentence: str, found: str, expected: dict[str, str]) -> str:
    """What an answer is, by what each sentence gave when it was alone."""
    if found == expected[sentence]:
        return RIGHT
    return MIXED_UP if found in expected.values() else DIFFERENT


def ask_all(
    url: str, sentences: Sequence[str], expected: dict[str, str], *, clients: int
) -> Outcome:
    """Send a request for each sentence, `clients` at a time."""
    outcome, lock = Outcome(), threading.Lock()
    left = iter(sentences)

    def work() -> None:
        client = Client(url)
        while True:
            with lock:
                sentence = next(left, None)
            if sentence is None:
                break
            start = time.perf_counter()
            try:
                status, found = client.translate(sentence)
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, found = type(error).__name__, str(error)
            seconds = time.perf_counter() - start
            kind = judge(sentence, found, expected) if status == 200 else LOST
            with lock:
                outcome.kinds[kind] += 1
                outcome.statuses[status] += 1
                if status == 200:
                    outcome.latencies.append(seconds)
                if kind != RIGHT and len(outcome.examples) < 5:
                    outcome.examples.append(f"{kind}: {sentence!r} -> {found!r}")
        client.close()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - start
    return outcome


def ask_one_by_one(url: str, sentences: Sequence[str]) -> dict[str, str]:
    """What each sentence gives when the server has nothing else to do."""
    found = {}
    with contextlib.closing(Client(url)) as client:
        for sentence in sentences:
            status, found[sentence] = client.translate(sentence)
            if status != 200:
                raise LoadError(f"{sentence!r} gives {status}: {found[sentence]}")
    return found


def read_sentences(file: Path, count: int) -> list[str]:
    """The first distinct lines of a file, plain or gzipped."""
    data = file.read_bytes()
    text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    distinct = dict.fromkeys(filter(None, map(str.strip, text.split("\n"))))
    return list(itertools.islice(distinct, count))


@contextlib.contextmanager
def server(command: Sequence[str]) -> Iterator[str]:
    """Start a server and give its address; it has to end well."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=log, stdout=subprocess.PIPE, text=True
        )
        try:
            yield wait_until_ready(process, log)
            process.send_signal(signal.SIGTERM)
            if process.wait(PATIENCE) != 0:
                raise LoadError(f"the server ended with exit code {process.returncode}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def wait_until_ready(process: subprocess.Popen, log) -> str:
    """The address that a server says it listens on, when it is warm."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        log.seek(0)
        found = re.search(r"^serving: .* on (http://\S+?),", log.read(), re.M)
        if found and is_ready(found[1]):
            return found[1]
    log.seek(0)
    raise LoadError(f"the server did not get ready; it said:\n{log.read()}")


def is_ready(url: str) -> bool:
    """Whether the server says so itself."""
    with contextlib.closing(Client(url)) as client, contextlib.suppress(OSError):
        return client.get("/health")[0] == 200
    return False


def read_metrics(url: str) -> str:
    """What the server counts."""
    with contextlib.closing(Client(url)) as client:
        return client.get("/metrics")[1]


def metric(text: str, name: str) -> float:
    """The value of a metric without labels."""
    found = re.search(rf"^{name} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def report(outcome: Outcome, *, clients: int, occupancy: float) -> dict:
    """Print what was measured; returns it."""
    latencies = outcome.latencies or [0.0]
    late = latencies[len(latencies) // 2 :]  # when all programs are compiled

    def quantile(share: float, of: Sequence[float] = latencies) -> float:
        place = min(len(of) - 1, int(share * len(of)))
        return round(1000 * sorted(of)[place], 1)

    values = {
        "requests": outcome.kinds.total(),
        "clients": clients,
        **{kind.replace(" ", "_"): outcome.kinds[kind]
           for kind in (RIGHT, MIXED_UP, DIFFERENT, LOST)},
        "seconds": round(outcome.seconds, 1),
        "requests_per_second": round(outcome.kinds.total() / outcome.seconds, 1),
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
        "max_ms": quantile(1.0),
        "second_half_p99_ms": quantile(0.99, late),
        "sentences_in_search": round(occupancy, 1),
    }  # fmt: skip
    for name, value in values.items():
        print(f"{name.replace('_', ' '):<22} {value:>10,}")
    for status, count in sorted(outcome.statuses.items(), key=str):
        print(f"{f'status {status}':<22} {count:>10,}")
    for example in outcome.examples:
        print(f"  {example}")
    return values


def measure(url: str, options: argparse.Namespace) -> dict:
    """Measure the server at `url`."""
    distinct = read_sentences(Path(options.sentences), options.distinct)
    start = time.perf_counter()
    expected = ask_one_by_one(url, distinct)
    alone = (time.perf_counter() - start) / max(1, len(distinct))
    print(f"{len(distinct)} sentences one by one: {1000 * alone:.1f} ms each")
    times = -(-options.requests // len(distinct))
    order = (distinct * times)[: options.requests]
    random.Random(options.seed).shuffle(order)
    before = read_metrics(url)
    outcome = ask_all(url, order, expected, clients=options.clients)
    after = read_metrics(url)
    batches, sentences = (
        metric(after, f"jaxformer_batch_sentences_{what}")
        - metric(before, f"jaxformer_batch_sentences_{what}")
        for what in ("count", "sum")
    )
    occupancy = sentences / batches if batches else 0.0
    values = report(outcome, clients=options.clients, occupancy=occupancy)
    return {**values, "alone_ms": round(1000 * alone, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--workdir", help="a run to serve")
    where.add_argument("--url", help="a server that runs already")
    parser.add_argument("--sentences", required=True, help="a text, one a line")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--distinct", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options, flags = parser.parse_known_args(argv)  # others are the server's
    command = [
        sys.executable, "-m", "jaxformer.main", "--mode=serve", "--port=0",
        f"--workdir={Path(options.workdir or '.').resolve()}", *flags,
    ]  # fmt: skip
    try:
        with (
            contextlib.nullcontext(options.url)
            if options.url
            else server(command) as url
        ):
            values = measure(url, options)
    except LoadError as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    print(json.dumps(values))
    return 0 if values["right"] == values["requests"] else 1


if __name__ == "__main__":
    sys.exit(main())
