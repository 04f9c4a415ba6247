"""Sentence pairs from TensorFlow Datasets, such as the paper's wmt14_translate/de-en.

Used by `jaxformer.data.sources`. TensorFlow is imported when such a corpus is read and
not before. TFDS retries an unreachable server for minutes; here a set that is neither
prepared nor downloadable is an InputError within seconds, with the command that
prepares it.
"""

import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from http.client import HTTPException
from typing import Any

from jaxformer.errors import InputError

_PROBE_SECONDS = 3.0
_BATCH = 1024  # pairs converted to Python objects at a time


def read_tfds(
    name: str,
    split: str,
    *,
    source_language: str,
    target_language: str,
    data_dir: str,
    download: bool,
) -> Iterator[tuple[str, str]]:
    """Stream (source, target) of a split of a translation set, in stored order.

    Either direction of the set's languages. `data_dir` "" is TFDS's own place;
    `download` allows preparing a set that is not there yet. Raises InputError at once
    if the set, the split or a language is missing.
    """
    builder = _prepared_builder(name, data_dir or None, download)
    languages, splits = sorted(builder.info.features), sorted(builder.info.splits)
    if not {source_language, target_language} <= set(languages):
        raise InputError(
            f"TFDS {name} holds {' and '.join(languages)}, not the data.source_language"
            f" {source_language} and data.target_language {target_language}."
        )
    if split.partition("[")[0] not in splits:
        raise InputError(f"TFDS {name} has no split {split}, only {', '.join(splits)}.")
    return _stream(builder, split, source_language, target_language)


def _stream(
    builder: Any, split: str, source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    import tensorflow_datasets as tfds

    # One file after the other, and no copy of the whole set in memory.
    reading = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    batches = builder.as_dataset(
        split=split, batch_size=_BATCH, shuffle_files=False, read_config=reading
    )
    for batch in tfds.as_numpy(batches):
        sides = (batch[source_language], batch[target_language])
        for source, target in zip(*sides, strict=True):
            yield _sentence(source), _sentence(target)


def _sentence(text: bytes) -> str:
    """Some sets hold line ends within a sentence; here a sentence is one line."""
    return text.decode("utf-8").replace("\n", " ")


def _prepared_builder(name: str, data_dir: str | None, download: bool) -> Any:
    """The TFDS builder with its data on disk, prepared now if that is allowed."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            f"tfds:{name} needs TensorFlow Datasets ({error}): pip install "
            "tensorflow-cpu tensorflow-datasets importlib_resources."
        ) from None
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except ValueError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"TFDS cannot open {name}: {reason}") from None
    if not builder.is_prepared():
        _prepare(builder, name, data_dir, download)
    return builder


def _prepare(builder: Any, name: str, data_dir: str | None, download: bool) -> None:
    place = "" if data_dir is None else f", data_dir={data_dir!r}"
    command = (
        'python -c "import tensorflow_datasets as tfds; '
        f'tfds.builder({name!r}{place}).download_and_prepare()"'
    )
    missing = f"TFDS {name} is not prepared in {builder.data_path}"
    if not download:
        raise InputError(f"{missing}: set data.download, or run {command}")
    urls = builder.url_infos or ()  # None: the set downloads nothing
    servers = {urllib.parse.urlsplit(url).netloc: url for url in urls}
    if servers and not any(map(_answers, servers.values())):
        raise InputError(
            f"{missing} and {' and '.join(servers)} cannot be reached: where there is "
            f"a network, run {command}"
        )
    try:
        with redirect_stdout(sys.stderr):  # TFDS prints; stdout is for results
            builder.download_and_prepare()
    except Exception as error:  # whatever the set's own script and its download raise
        raise InputError(
            f"{missing} and preparing it failed ({type(error).__name__}: {error}); "
            f"to try again, run {command}"
        ) from error


def _answers(url: str) -> bool:
    """Whether the server (through a proxy, if one is set) answers within seconds."""
    answered = threading.Event()

    def request() -> None:
        try:
            with urllib.request.urlopen(url, timeout=_PROBE_SECONDS):
                answered.set()
        except (OSError, HTTPException):
            pass  # not answered

    # In a thread because the timeout of a socket does not cover the name look-up.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS + 1)
    return answered.is_set()
