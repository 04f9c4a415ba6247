"""Put a server under load, and check that no answer is lost or mixed up.

    python benchmarks/load.py --workdir=runs/m30k --sentences=test.en.gz
        [--requests=10000] [--clients=64] [--distinct=1000] [--seed=0]
    python benchmarks/load.py --url=http://127.0.0.1:8000/ --sentences=test.en.gz

starts `--mode=serve` on a free port with all other flags, or asks the server at --url.
Each distinct sentence is translated alone for its expected answer. Then the clients
request them in random order, each as soon as it has its last answer. Prints throughput
and latency, then the same as a line of JSON. The exit code is 0 only if all is right.
"""

import argparse
import collections
import contextlib
import gzip
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

JSON = {"Content-Type": "application/json"}
TIMEOUT = 600  # seconds to get ready, to answer and to end
VERDICTS = "right", "mixed_up", "different", "lost"
# Of one request; status is an HTTP status or the kind of error, times are in seconds.
Answer = collections.namedtuple("Answer", "sentence status text start seconds")


def connect(url: str) -> contextlib.closing[HTTPConnection]:
    """Return a connection; each request opens it if it is closed."""
    return contextlib.closing(HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT))


def is_ready(url: str) -> bool:
    """Whether the server at `url` translates."""
    with connect(url) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200


def translate(connection: HTTPConnection, sentence: str) -> Answer:
    """Request a translation."""
    start, body = time.perf_counter(), json.dumps({"text": sentence})
    try:
        connection.request("POST", "/translate", body, JSON)
        response = connection.getresponse()
        status, values = response.status, json.load(response)
        text = values["translations"][0]["text"] if status == 200 else values["error"]
    except (OSError, HTTPException, ValueError) as error:
        connection.close()
        status, text = type(error).__name__, str(error)
    return Answer(sentence, status, text, start, time.perf_counter() - start)


def translate_all(url: str, sentences: Sequence[str], clients: int) -> list[Answer]:
    """Request the translations of all sentences, `clients` at a time."""
    waiting = iter(sentences)

    def client(_: int) -> list[Answer]:
        with connect(url) as connection:
            return [translate(connection, sentence) for sentence in waiting]

    with ThreadPoolExecutor(clients) as pool:
        answers = itertools.chain(*pool.map(client, range(clients)))
    return sorted(answers, key=lambda answer: answer.start)


def read_sentences(file: Path, count: int) -> list[str]:
    """Read the first distinct lines of a file, plain or gzipped."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", newline="\n") as lines:
        distinct = dict.fromkeys(filter(None, map(str.strip, lines)))
    return list(itertools.islice(distinct, count))


@contextlib.contextmanager
def server(command: Sequence[str]) -> Iterator[str]:
    """Start a server, yield its URL when it is ready, and require that it ends well."""
    url, end = None, time.monotonic() + TIMEOUT
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            while url is None or not is_ready(url[1]):
                time.sleep(0.2)
                log.seek(0)
                text = log.read()
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"load: the server did not get ready; it said:\n{text}")
                url = re.search(r"^serving: .* on (http://\S+?),", text, re.M)
            yield url[1]
            process.send_signal(signal.SIGTERM)
            if process.wait(TIMEOUT) != 0:
                sys.exit(f"load: the server ended with code {process.returncode}")
        finally:
            process.kill()
            process.wait()


def measure(url: str, options: argparse.Namespace) -> dict:
    """Measure the server at `url`; prints and returns the figures."""
    distinct = read_sentences(options.sentences, options.distinct)
    alone = translate_all(url, distinct, clients=1)
    for sentence, status, text, *_ in alone:
        if status != 200:
            sys.exit(f"load: {sentence!r} gives {status}: {text}")
    expected = {answer.sentence: answer.text for answer in alone}
    order = list(itertools.islice(itertools.cycle(distinct), options.requests))
    random.Random(options.seed).shuffle(order)
    start = time.perf_counter()
    answers = translate_all(url, order, options.clients)
    seconds = time.perf_counter() - start

    def verdict(answer: Answer) -> str:
        if answer.status != 200:
            return "lost"
        if answer.text == expected[answer.sentence]:
            return "right"
        return "mixed_up" if answer.text in expected.values() else "different"

    verdicts = collections.Counter(map(verdict, answers))
    ms = [1000 * answer.seconds for answer in answers if answer.status == 200] or [0]
    values = {"requests": len(order), "clients": options.clients}
    values |= {kind: verdicts[kind] for kind in VERDICTS}
    values |= {"seconds": seconds, "requests_per_second": len(order) / seconds}
    values["alone_ms"] = 1000 * np.mean([answer.seconds for answer in alone])
    values |= {f"p{q}_ms": np.percentile(ms, q) for q in (50, 99)}
    values["max_ms"] = max(ms)
    values = {name: round(value, 1) for name, value in values.items()}
    statuses = collections.Counter(f"status {answer.status}" for answer in answers)
    for name, value in (values | statuses).items():
        print(f"{name.replace('_', ' '):<22} {value:>10,}")
    for answer in [each for each in answers if verdict(each) != "right"][:5]:
        print(f"  {verdict(answer)}: {answer.sentence!r} -> {answer.text!r}")
    return values


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--workdir", help="a run to serve")
    where.add_argument("--url", help="a running server")
    parser.add_argument("--sentences", type=Path, required=True, help="one a line")
    defaults = {"requests": 10_000, "clients": 64, "distinct": 1000, "seed": 0}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, flags = parser.parse_known_args(argv)
    command = [sys.executable, "-m", "jaxformer.main", "--mode=serve", "--port=0"]
    command += [f"--workdir={Path(options.workdir or '.').resolve()}", *flags]
    with contextlib.nullcontext(options.url) if options.url else server(command) as url:
        values = measure(url, options)
    print(json.dumps(values))
    return 0 if values["right"] == values["requests"] else 1


if __name__ == "__main__":
    sys.exit(main())
