"""Put a server under load, and check that no answer is lost or mixed up.

    python benchmarks/load.py --workdir=runs/m30k --sentences=test.en.gz
        [--requests=10000] [--clients=64] [--distinct=1000] [--seed=0]
        [--large] [--flags=--beam_size=1,...]
    python benchmarks/load.py --url=http://127.0.0.1:8000/ --sentences=test.en.gz

starts `--mode=serve` on a free port with --flags, or asks the server at --url. Each
distinct sentence is translated alone for its expected answer. Then the clients request
them in random order, each as soon as it has its last answer. With --large they do so
once more beside a client that sends only requests of the largest size allowed. Prints
throughput and latencies, and the server's resident memory after each 10,000 requests.
The exit code is 0 only if all answers are right and the latencies are within P99_BOUND
and LARGE_BOUND.
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


def read(url: str, page: str) -> str:
    """Read a page of the server; "" if it does not answer or refuses."""
    with contextlib.suppress(OSError):  # such as status 503
        return urlopen(f"{url.rstrip('/')}/{page}", timeout=TIMEOUT).read().decode()
    return ""


def resident_mb(url: str) -> int:
    """Return the server's resident memory; 0 if it does not tell."""
    pattern = r"^process_resident_memory_bytes (\S+)$"
    found = re.search(pattern, read(url, "metrics"), re.MULTILINE)
    return round(float(found[1]) / 2**20) if found else 0


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


def translate_all(
    url: str, sentences: Sequence[str], clients: int
) -> tuple[list[Answer], float]:
    """Request all translations, `clients` at a time; returns them and the seconds."""
    waiting, start = iter(sentences), time.perf_counter()

    def client(_: int) -> list[Answer]:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)
        with contextlib.closing(connection):
            return [translate(connection, sentence) for sentence in waiting]

    with ThreadPoolExecutor(clients) as pool:
        answers = list(itertools.chain(*pool.map(client, range(clients))))
    return answers, time.perf_counter() - start


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
def server(flags: Sequence[str]) -> Iterator[str]:
    """Start a server, yield its URL when it serves, and require that it ends well."""
    command = [sys.executable, "-m", "jaxformer.main", "--mode=serve", *flags]
    end = time.monotonic() + TIMEOUT
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--listen=0"], stderr=log, stdout=log, cwd=harness.ROOT
        )
        try:
            url, health = None, ""
            while not health or "compiling" in health:
                time.sleep(0.2)
                log.seek(0)
                text = log.read()
                if process.poll() is not None or time.monotonic() > end:
                    raise InputError(f"the server did not get ready; it said:\n{text}")
                url = re.search(r"^serving: .* on (http://\S+?),", text, re.M)
                health = read(url[1], "ready") if url else ""
            yield url[1]
            process.send_signal(signal.SIGTERM)
            if process.wait(TIMEOUT) != 0:
                raise InputError(f"the server ended with code {process.returncode}")
        finally:
            process.kill()
            process.wait()


def percentiles(answers: Sequence[Answer]) -> dict[int, float]:
    """The latencies of the requests that were answered, in milliseconds."""
    ms = [1000 * each.seconds for each in answers if each.status == 200]
    if not ms:
        raise InputError(f"no request was answered; the last: {answers[-1]}")
    return {q: float(np.percentile(ms, q)) for q in (50, 95, 99, 100)}


def judge(answer: Answer, expected: dict[str, str]) -> str:
    if answer.status != 200:
        return "lost"
    if answer.text == expected[answer.sentence]:
        return "right"
    return "mixed_up" if answer.text in expected.values() else "different"


def ask(url: str, options: argparse.Namespace) -> dict:
    lines = filter(None, map(str.strip, read_lines(options.sentences)))
    distinct = list(itertools.islice(dict.fromkeys(lines), options.distinct))
    alone, alone_seconds = translate_all(url, distinct, 1)
    for sentence, status, text, _ in alone:
        if status != 200:
            raise InputError(f"{sentence!r} gives {status}: {text}")
    expected = {answer.sentence: answer.text for answer in alone}
    order = list(itertools.islice(itertools.cycle(distinct), options.requests))
    random.Random(options.seed).shuffle(order)
    seconds, memory, answers = 0.0, [resident_mb(url)], []
    for begin in range(0, len(order), PART):
        part = translate_all(url, order[begin : begin + PART], options.clients)
        answers, seconds = answers + part[0], seconds + part[1]
        memory.append(resident_mb(url))
    verdicts = collections.Counter(judge(each, expected) for each in answers)
    ms, clients = percentiles(answers), f"{options.clients} clients"
    values = {kind: verdicts[kind] for kind in VERDICTS}
    values |= {"requests_per_second": len(order) / seconds, "resident_mb": memory}
    values |= {f"p{q}_ms": each for q, each in ms.items()}
    holds = verdicts["right"] == len(order) and ms[99] <= P99_BOUND * ms[50]
    loads = {"1 client": (alone, alone_seconds), clients: (answers, seconds)}
    if options.large:
        with large_client(url, distinct) as statuses:
            beside = translate_all(url, order[:PART], options.clients)
        loads[f"{clients}, and one of large requests"] = beside
        wrong = sum(judge(each, expected) != "right" for each in beside[0])
        values["not_right_beside_large"] = wrong
        values["large_requests"] = statuses[200]
        values["large_requests_without_answer"] = statuses.total() - statuses[200]
        holds &= percentiles(beside[0])[95] <= LARGE_BOUND * ms[95]
        holds &= wrong == 0 and statuses[200] > 0
    for each in answers:
        if judge(each, expected) != "right":
            print(f"{judge(each, expected)}: {each}", file=sys.stderr)
    print_loads(loads, expected)
    print(f"resident MB at first and after each {PART:,} requests: {memory}")
    return values | {"holds": holds}


def print_loads(
    loads: dict[str, tuple[list[Answer], float]], expected: dict[str, str]
) -> None:
    rows = []
    for name, (found, seconds) in loads.items():
        right = sum(judge(each, expected) == "right" for each in found)
        row = f"{name} | {len(found):,} | {right:,} | {len(found) / seconds:,.0f}"
        times = (f"{each:,.1f} ms" for each in percentiles(found).values())
        rows.append(" | ".join([row, *times]))
    columns = "load", "requests", "right", "requests/s", "p50", "p95", "p99", "slowest"
    harness.print_table(" | ".join(columns), rows)


def measure(options: argparse.Namespace) -> dict:
    given = [each for each in (options.workdir, options.url) if each]
    if options.sentences is None or len(given) != 1:
        raise InputError("give --sentences, and either --workdir or --url")
    if options.url:
        return ask(options.url, options)
    with server([f"--workdir={options.workdir.resolve()}", *options.flags]) as url:
        return ask(url, options)


main = functools.partial(
    harness.run, __doc__, measure, workdir=None, url="", sentences=None, flags=[],
    requests=10_000, clients=64, distinct=1000, seed=0, large=False,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
