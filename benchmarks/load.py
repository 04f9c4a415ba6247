"""Put a server under load, and check that no answer is lost or mixed up.

    python benchmarks/load.py --workdir=runs/m30k --sentences=test.en.gz
        [--requests=10000] [--clients=64] [--distinct=1000] [--seed=0]
        [--large] [--flags=--beam_size=1,...]
    python benchmarks/load.py --model=FOLDER --sentences=test.en.gz
    python benchmarks/load.py --url=http://127.0.0.1:8000/ --sentences=test.en.gz

starts `--mode=serve` on a free port with --flags, or `serve_ctranslate2.py` with
--model, or asks the server at --url. Each distinct sentence is translated alone for its
expected answer. Then the clients request them in random order, each as soon as it has
its last answer. With --large they do so once more beside a client that sends only
requests of the largest size allowed. Prints throughput and latencies, and the server's
resident memory after each 10,000 requests. The exit code is 0 only if all answers are
right and the latencies are within P99_BOUND and LARGE_BOUND.
"""

import argparse
import collections
import contextlib
import functools
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
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from jaxformer.system.errors import InputError
from jaxformer.text.sources import read_lines

JSON = {"Content-Type": "application/json"}
TIMEOUT = 600  # seconds to get ready, to answer and to end
P99_BOUND = 5.0  # the 99th percentile of latencies, in medians
LARGE_BOUND = 3.0  # p95 beside a large client, in p95 without
HEAD_START = 5.0  # seconds of the large client
PART = 10_000  # requests between two readings of the memory
VERDICTS = "right", "mixed_up", "different", "lost"
# Of one request; status is an HTTP status or the kind of error, `seconds` its latency.
Answer = collections.namedtuple("Answer", "sentence status text seconds")


def is_ready(url: str) -> bool:
    """Whether the server at `url` translates."""
    with contextlib.suppress(OSError):  # such as status 503
        return urlopen(f"{url.rstrip('/')}/ready", timeout=TIMEOUT).status == 200
    return False


def resident_mb(url: str) -> float:
    """Read the server's resident memory; 0 if it does not tell."""
    with contextlib.suppress(OSError):
        text = urlopen(f"{url.rstrip('/')}/metrics", timeout=TIMEOUT).read().decode()
        found = re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)
        return float(found[1]) / 2**20 if found else 0.0
    return 0.0


def translate(connection: HTTPConnection, sentence: str) -> Answer:
    start, body = time.perf_counter(), json.dumps({"text": sentence})
    try:
        connection.request("POST", "/translate", body, JSON)
        response = connection.getresponse()
        status, values = response.status, json.load(response)
        text = values["translations"][0]["text"] if status == 200 else values["error"]
    except (OSError, HTTPException, ValueError) as error:
        connection.close()
        status, text = type(error).__name__, str(error)
    return Answer(sentence, status, text, time.perf_counter() - start)


def translate_all(url: str, sentences: Sequence[str], clients: int) -> list[Answer]:
    """Request the translations of all sentences, `clients` at a time."""
    waiting = iter(sentences)

    def client(_: int) -> list[Answer]:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)
        with contextlib.closing(connection):
            return [translate(connection, sentence) for sentence in waiting]

    with ThreadPoolExecutor(clients) as pool:
        return list(itertools.chain(*pool.map(client, range(clients))))


@contextlib.contextmanager
def large_client(url: str, sentences: Sequence[str]) -> Iterator[collections.Counter]:
    """Send the largest requests allowed, one after another; yield their statuses.

    After the block it holds at least one.
    """
    statuses: collections.Counter = collections.Counter()
    is_over = threading.Event()

    def run() -> None:
        text = " ".join(sentences) * 20
        connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)
        with contextlib.closing(connection):
            while not (is_over.is_set() and statuses.total()):
                status = translate(connection, text).status
                statuses[status] += status != 413
                if status == 413:
                    text = text[: len(text) * 9 // 10]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        time.sleep(HEAD_START)  # until its first request is begun
        yield statuses
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def server(command: Sequence[str]) -> Iterator[str]:
    """Start a server, yield its URL when it serves, and require that it ends well."""
    end = time.monotonic() + TIMEOUT
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, *command, "--port=0"]
        streams = {"stderr": log, "stdout": log, "cwd": harness.ROOT}
        process = subprocess.Popen(command, **streams)
        try:
            url = None
            while url is None or not is_ready(url[1]):
                time.sleep(0.2)
                log.seek(0)
                text = log.read()
                if process.poll() is not None or time.monotonic() > end:
                    raise InputError(f"the server did not get ready; it said:\n{text}")
                url = re.search(r"^serving: .* on (http://\S+?),", text, re.M)
            yield url[1]
            process.send_signal(signal.SIGTERM)
            if process.wait(TIMEOUT) != 0:
                raise InputError(f"the server ended with code {process.returncode}")
        finally:
            process.kill()
            process.wait()


def timed(
    url: str, sentences: Sequence[str], clients: int
) -> tuple[list[Answer], float]:
    """Return what `translate_all` does, and the seconds that it took."""
    start = time.perf_counter()
    return translate_all(url, sentences, clients), time.perf_counter() - start


def percentiles(answers: Sequence[Answer]) -> dict[int, float]:
    """The latencies of the requests that were answered, in milliseconds."""
    ms = [1000 * each.seconds for each in answers if each.status == 200]
    if not ms:
        raise InputError(f"no request was answered; the last: {answers[-1]}")
    return {q: np.percentile(ms, q) for q in (50, 95, 99, 100)}


def ask(url: str, options: argparse.Namespace) -> dict:
    lines = filter(None, map(str.strip, read_lines(options.sentences)))
    distinct = list(itertools.islice(dict.fromkeys(lines), options.distinct))
    alone, alone_seconds = timed(url, distinct, clients=1)
    for sentence, status, text, _ in alone:
        if status != 200:
            raise InputError(f"{sentence!r} gives {status}: {text}")
    expected = {answer.sentence: answer.text for answer in alone}
    order = list(itertools.islice(itertools.cycle(distinct), options.requests))
    random.Random(options.seed).shuffle(order)
    seconds, memory, answers = 0.0, [resident_mb(url)], []
    for begin in range(0, len(order), PART):
        part = timed(url, order[begin : begin + PART], options.clients)
        answers, seconds = answers + part[0], seconds + part[1]
        memory.append(resident_mb(url))

    def verdict(answer: Answer) -> str:
        if answer.status != 200:
            return "lost"
        if answer.text == expected[answer.sentence]:
            return "right"
        return "mixed_up" if answer.text in expected.values() else "different"

    verdicts = collections.Counter(map(verdict, answers))
    ms = percentiles(answers)
    values = {"requests": len(order), "clients": options.clients}
    values |= {kind: verdicts[kind] for kind in VERDICTS}
    values |= {"seconds": seconds, "requests_per_second": len(order) / seconds}
    values["alone_ms"] = 1000 * np.mean([answer.seconds for answer in alone])
    values |= {f"p{q}_ms": each for q, each in ms.items()}
    holds = verdicts["right"] == len(order) and ms[99] <= P99_BOUND * ms[50]
    clients = f"{options.clients} clients"
    loads = {"1 client": (alone, alone_seconds), clients: (answers, seconds)}
    if options.large:
        with large_client(url, distinct) as statuses:
            beside, took = timed(url, order[:PART], options.clients)
        loads[f"{clients}, and one of large requests"] = beside, took
        values["p95_beside_large_ms"] = percentiles(beside)[95]
        holds &= values["p95_beside_large_ms"] <= LARGE_BOUND * ms[95]
        wrong = sum(verdict(each) != "right" for each in beside)
        values["not_right_beside_large"] = wrong
        holds &= wrong == 0 and statuses[200] > 0
        values["large_requests"] = statuses[200]
        values["large_requests_without_answer"] = statuses.total() - statuses[200]
    values = {name: round(float(value), 1) for name, value in values.items()}
    for each in [each for each in answers if verdict(each) != "right"][:5]:
        print(f"{verdict(each)}: {each.sentence!r} -> {each.status} {each.text!r}")
    columns = "load", "requests", "right", "requests/s", "p50", "p95", "p99", "slowest"
    rows = []
    for name, (found, took) in loads.items():
        right = sum(verdict(each) == "right" for each in found)
        row = f"{name} | {len(found):,} | {right:,} | {len(found) / took:,.0f}"
        times = (f"{each:,.1f} ms" for each in percentiles(found).values())
        rows.append(" | ".join([row, *times]))
    harness.print_table(" | ".join(columns), rows)
    memory = [round(each) for each in memory]
    print(f"resident MB at first and after each {PART:,} requests: {memory}")
    return values | {"resident_mb": memory, "holds": bool(holds)}


def measure(options: argparse.Namespace) -> dict:
    given = [each for each in (options.workdir, options.model, options.url) if each]
    if options.sentences is None or len(given) != 1:
        raise InputError("give --sentences, and one of --workdir, --model and --url")
    if options.url:
        return ask(options.url, options)
    if options.model:
        peer = str(harness.ROOT / "benchmarks" / "serve_ctranslate2.py")
        command = [peer, f"--model={options.model.resolve()}"]
    else:
        ours = ["-m", "jaxformer.main", "--mode=serve"]
        command = [*ours, f"--workdir={options.workdir.resolve()}", *options.flags]
    with server(command) as url:
        return ask(url, options)


main = functools.partial(
    harness.run, __doc__, measure, workdir=None, url="", sentences=None, flags=[],
    requests=10_000, clients=64, distinct=1000, seed=0, model=None, large=False,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
