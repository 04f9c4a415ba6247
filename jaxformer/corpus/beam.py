"""Prepare training text on many machines, by Apache Beam.

The workers read the text and write the corpus under the paths or URLs that this machine
has for them. There are two pipelines: the survey, and tokenising. Each first counts the
pairs of every file, which gives each pair its place. Then it reads the files again and
groups the pairs by shard.
"""

import io
import json
import logging
import os
import shlex
import uuid
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from jaxformer.config.data import DataConfig
from jaxformer.corpus.shard_job import FOUND, SHARDS, Shard, ShardJob, entry_name
from jaxformer.corpus.shared_folder import SharedFolder
from jaxformer.corpus.store import read_index, save_array, write_index
from jaxformer.system.errors import InputError
from jaxformer.system.files import entries, file_name, remove
from jaxformer.system.progress import progress
from jaxformer.text import sources
from jaxformer.text.sources import read_parts
from jaxformer.text.tfds import open_builder
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.vocabulary import VocabularySamples

log = logging.getLogger(__name__)


class Beam:
    """Runs the pipelines of a preparation."""

    def __init__(self, runner: str, options: str, url: str = "") -> None:
        """Use a runner such as "DirectRunner", with options of Beam's command line.

        `url` is that of the run's folder, if it is on an object store. Raises
        InputError for a runner or options that Beam does not take.
        """
        self._runner, self._url = runner, url
        try:
            with redirect_stderr(io.StringIO()):  # argparse prints its usage
                arguments = [f"--runner={runner}", *shlex.split(options)]
                self._options = PipelineOptions(arguments)
                self._options.get_all_options()  # reads them
                self._pipeline()
        except (ValueError, ImportError, SystemExit) as error:
            reason = str(error).rstrip(".").replace("\n", " ")
            raise InputError(f"--runner={runner} {options}: {reason}") from None

    def _pipeline(self) -> beam.Pipeline:
        return beam.Pipeline(options=self._options)

    def begin(self, config: DataConfig) -> None:
        """Prepare the sets of TensorFlow Datasets that are missing."""
        for part in config.parts.values():
            kind, _, name = part.data.corpus.partition(":")
            if kind == "tfds" and name:
                open_builder(name, part.data.directory, beam_options=self._options)

    def survey(
        self, folder: Path, config: DataConfig, samples: VocabularySamples | None
    ) -> tuple[dict[str, int], dict[str, list[str]]]:
        """Read the text as `jaxformer.corpus.survey` does, with the same result."""
        job = self._job(config, folder, f"{FOUND}.{uuid.uuid4().hex}")

        def build(pipeline: beam.Pipeline) -> None:
            shards, counts = _shards(pipeline, job, frozenset())
            digests = shards | _step(job, "survey", counts)
            if any(data.deduplicate for data in job.texts):
                repeated = digests | beam.GroupByKey() | beam.FlatMap(job.repeated)
                repeated | "shard" >> beam.GroupByKey() | beam.Map(job.write_repeated)

        try:
            self._run("reading the text", job, build)
            found = job.folder.fetched(folder / job.folder.path.name)
            return _read_found(found, folder, config, samples)
        finally:
            job.folder.remove_all()

    def write_shards(
        self,
        folder: Path,
        config: DataConfig,
        tokenizer: Tokenizer,
        hashes: dict[str, list[str]],
    ) -> None:
        """Write the missing shards of a text whose shards have these `hashes`.

        Raises TextChangedError if the text has others.
        """
        known = [*hashes.values()]
        if len(read_index(folder / "train")) == sum(map(len, known)):
            return  # a stop came after the last shard
        # Workers of an earlier command, which may still run, write to another folder
        # if they make another corpus.
        made_with = [config.prepared_by(), tokenizer.hash, known]
        name = sha256(json.dumps(made_with).encode()).hexdigest()
        job = self._job(config, folder, f"{SHARDS}.{name[:16]}")
        shards = [
            (corpus, number)
            for corpus, own in enumerate(known)
            for number in range(len(own))
        ]
        names, there = [*map(entry_name, range(len(shards)))], {*job.folder.names()}
        done = frozenset(
            shard for shard, name in zip(shards, names, strict=True) if name in there
        )
        for corpus, data in enumerate(job.texts):
            if data.deduplicate:
                job.partial.add(folder / f"repeated.{corpus}.npy")

        def build(pipeline: beam.Pipeline) -> None:
            shards, _ = _shards(pipeline, job, done)
            shards | _step(job, "tokenise", tokenizer.content, known)

        self._run("tokenising", job, build)
        found = job.folder.fetched(folder / job.folder.path.name)
        for name in names:
            if not (found / name).exists():
                raise InputError(
                    f"the workers of {self._runner} did not write "
                    f"{file_name(job.folder.path)}/{name}; give them the folder under "
                    "the same path, and repeat the command"
                )
        index = [json.loads((found / name).read_bytes()) for name in names]
        write_index(found, index)
        for name in names:
            (found / name).unlink()
        remove(folder / "train", ignore_errors=True)  # of another engine
        os.replace(found, folder / "train")

    def _job(self, config: DataConfig, partial: Path, name: str) -> ShardJob:
        shared = Path(self._url, partial.name) if self._url else partial.absolute()
        files = [
            [part[:2] for part in read_parts(data, "train")]
            for data in config.training_texts.values()
        ]
        folders = SharedFolder(shared), SharedFolder(shared / name)
        return ShardJob(config, files, *folders, sources.CHUNK, sources.SHARD)

    def _run(
        self, what: str, job: ShardJob, build: Callable[[beam.Pipeline], object]
    ) -> None:
        """Run a pipeline to its end. Raises the InputError of a worker."""
        job.forget_mistakes()
        pipeline = self._pipeline()
        build(pipeline)
        log.info("corpus: %s by %s", what, self._runner)
        result = None
        try:
            with progress(what):
                result = pipeline.run()
                result.wait_until_finish()
        except BaseException:
            if result is not None:
                with suppress(Exception):  # not all runners can
                    result.cancel()
            job.require_no_mistake()  # the others may follow from it
            raise
        job.require_no_mistake()


def _read_found(
    found: Path, folder: Path, config: DataConfig, samples: VocabularySamples | None
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Fill the samples, write which pairs are repeated, and return numbers and hashes.

    `found` has what workers wrote, `folder` is of the unfinished corpus.
    """
    counts, hashes = {}, {}
    for corpus, (name, data) in enumerate(config.training_texts.items()):
        counts[name], hashes[name], where = 0, [], [np.zeros(0, int)]
        for file in entries(found, f"{corpus}.*.json"):
            shard = json.loads(file.read_bytes())
            counts[name] += shard["pairs"]
            hashes[name].append(shard["hash"])
            if samples:
                samples.add_drawn(shard["drawn"])
            if file.with_suffix(".npy").exists():
                where.append(np.load(file.with_suffix(".npy")))
        if data.deduplicate:
            repeated = np.zeros(counts[name], bool)
            repeated[np.concatenate(where)] = True
            save_array(folder / f"repeated.{corpus}.npy", repeated)
    return counts, hashes


def _shards(
    pipeline: beam.Pipeline, job: ShardJob, done: frozenset[Shard]
) -> tuple[beam.PCollection, beam.pvalue.AsDict]:
    """Return the pieces of each shard, and the counts of the files as a side input."""
    files = [
        (corpus, number)
        for corpus, names in enumerate(job.files)
        for number in range(len(names))
    ]
    # Without the shuffles one worker would do what follows for all files.
    parts = pipeline | beam.Create(files) | beam.Reshuffle()
    counts = beam.pvalue.AsDict(parts | _step(job, "count"))
    pieces = parts | _step(job, "read", counts, done)
    return pieces | "shards" >> beam.GroupByKey(), counts


def _step(job: ShardJob, name: str, *given: object) -> beam.PTransform:
    """Return the transform by a method of the job."""
    return name >> beam.FlatMap(_noting_mistakes, job, name, *given)


# Beam checks annotations: as `given` and as the result it refuses `object`.
def _noting_mistakes(
    item: object, job: ShardJob, name: str, *given: Any
) -> Iterable[Any]:
    return job.noting_mistakes(name, item, *given)
