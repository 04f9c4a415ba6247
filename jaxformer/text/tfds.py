"""Read sentence pairs from TensorFlow Datasets, such as wmt14_translate/de-en.

TFDS retries an unreachable server for minutes. Here a set that is neither prepared nor
downloadable raises InputError within seconds, with the command that prepares it.
"""

import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from http.client import HTTPException

from jaxformer.config.data import DataConfig
from jaxformer.system.errors import InputError, packages_of
from jaxformer.text.records import LINE_ENDS

_PROBE_SECONDS = 3.0
_BATCH = 1024  # pairs converted to Python objects at a time


def read_tfds(config: DataConfig, name: str, split: str) -> Iterator[tuple[str, str]]:
    """Stream (source, target) of a split of a translation set, in stored order.

    Prepares a set that is not in the folder `config.directory`. Raises InputError at
    once if the set, the split or a language is missing.
    """
    builder = open_builder(name, config.directory)
    languages = config.source_language, config.target_language
    known, splits = sorted(builder.info.features), sorted(builder.info.splits)
    if not set(languages) <= set(known):
        raise InputError(
            f"TFDS {name} holds {' and '.join(known)}, not the data.source_language "
            f"{languages[0]} and data.target_language {languages[1]}"
        )
    if split.partition("[")[0] not in splits:
        raise InputError(f"TFDS {name} has no split {split}, only {', '.join(splits)}")
    try:
        pairs = builder.info.splits[split].num_examples
    except ValueError as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise InputError(f"TFDS {name} has no split {split}: {reason}") from None
    if pairs < 1:
        raise InputError(f"TFDS {name} has no pairs in {split}")
    return _stream(builder, split, languages)


def _stream(
    builder: object, split: str, languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # One file after the other, and no copy of the whole set in memory.
    reading = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    batches = builder.as_dataset(
        split=split, batch_size=_BATCH, shuffle_files=False, read_config=reading
    )
    number = 0
    try:
        for batch in tfds.as_numpy(batches):
            for pair in zip(*(batch[language] for language in languages), strict=True):
                number += 1
                # Some sets have line ends within a sentence.
                source, target = (text.decode().translate(LINE_ENDS) for text in pair)
                yield source, target
    except (UnicodeDecodeError, tf.errors.OpError) as error:
        where = "" if isinstance(error, UnicodeDecodeError) else "what is after "
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{where}pair {number} of {split} in TFDS {builder.info.full_name} cannot "
            f"be read: {reason}; remove {builder.data_path}, and prepare the set again"
        ) from None


def open_builder(name: str, folder: str, *, beam_options: object = None) -> object:
    """Return the TFDS builder with its data in a folder, "" for TFDS's own.

    `beam_options` are Beam's, for the sets that it prepares.
    """
    with packages_of("tfds"):
        import tensorflow  # noqa: F401, which TFDS imports late
        import tensorflow_datasets as tfds
    try:
        builder = tfds.builder(name, data_dir=folder or None)
    except Exception as error:  # TFDS has no common class
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"TFDS cannot open {name}: {reason}") from None
    if builder.is_prepared():
        return builder
    argument = f", data_dir={folder!r}" if folder else ""
    command = (
        'python -c "import tensorflow_datasets as tfds; '
        f'tfds.builder({name!r}{argument}).download_and_prepare()"'
    )
    missing = f"TFDS {name} is not prepared in {builder.data_path}"
    urls = builder.url_infos or ()  # None: the set downloads nothing
    servers = {urllib.parse.urlsplit(url).netloc: url for url in urls}
    if servers and not any(map(_answers, servers.values())):
        raise InputError(
            f"{missing} and {' and '.join(servers)} cannot be reached: where there is "
            f"a network, run {command}"
        )
    try:
        with redirect_stdout(sys.stderr):  # TFDS prints; stdout is for results
            settings = tfds.download.DownloadConfig(beam_options=beam_options)
            builder.download_and_prepare(download_config=settings)
    except Exception as error:  # a set's own script may raise anything
        raise InputError(
            f"{missing} and preparing it failed ({type(error).__name__}: {error}); "
            f"to try again, run {command}"
        ) from error
    return builder


def _answers(url: str) -> bool:
    """Return whether the server, or the proxy if one is set, answers within seconds."""
    # In a thread because the timeout of a socket does not cover the name look-up.
    pool = ThreadPoolExecutor(1)
    asked = pool.submit(urllib.request.urlopen, url, timeout=_PROBE_SECONDS)
    with suppress(OSError, HTTPException):
        asked.result(_PROBE_SECONDS + 1).close()
        return True
    return False
