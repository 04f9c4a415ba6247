"""Prepare training text on many machines, by Apache Beam.

The workers read the text and write the corpus under the paths that this machine has for
them. There are two pipelines: the survey, and tokenising. Each first counts the pairs
of every file, which gives each pair its place. Then it reads the files again and groups
the pairs by shard.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from jaxformer.data import sources
from jaxformer.data.shard_job import FOUND, Shard, ShardJob
from jaxformer.data.sources import read_parts
from jaxformer.data.store import save_array, write_index
from jaxformer.data.text_hash import TextChangedError
from jaxformer.data.tfds_source import open_builder
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.data.vocabulary import VocabularySamples
from jaxformer.data_config import DataConfig
from jaxformer.errors import InputError
from jaxformer.progress import progress

log = logging.getLogger(__name__)


class Beam:
    """Runs the pipelines of a preparation."""

    def __init__(self, runner: str, options: Iterable[str]) -> None:
        """Use a runner such as "DirectRunner", with options of Beam's command line.

        Raises InputError for a runner that Beam does not have.
        """
        self._runner = runner
        self._options = PipelineOptions([f"--runner={runner}", *options])
        self._pipeline()

    def _pipeline(self) -> beam.Pipeline:
        try:
            return beam.Pipeline(options=self._options)
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise InputError(f"--runner={self._runner}: {reason}") from None

    def begin(self, config: DataConfig) -> None:
        """Prepare the sets of TensorFlow Datasets that are missing.

        Raises InputError for a config that pipelines cannot prepare.
        """
        if config.subword_sampling:
            raise InputError(
                "data.subword_sampling numbers the words of all text on one machine; "
                "set it to None, or prepare without --runner"
            )
        for part in config.parts.values():
            kind, _, name = part.data.corpus.partition(":")
            if kind == "tfds" and name:
                folder, download = part.data.data_dir, part.data.download
                open_builder(name, folder, download, beam_options=self._options)

    def survey(
        self, folder: Path, config: DataConfig, samples: VocabularySamples | None
    ) -> tuple[dict[str, int], dict[str, list[str]]]:
        """Read the text as `jaxformer.data.survey` does, with the same result."""
        job = _job(config, folder)
        (folder / FOUND).mkdir()

        def build(pipeline: beam.Pipeline) -> None:
            shards, counts = _shards(pipeline, job, frozenset())
            digests = shards | "survey" >> beam.FlatMap(_run, job, "survey", counts)
            if any(data.deduplicate for data in job.texts):
                repeated = digests | beam.GroupByKey() | beam.FlatMap(job.repeated)
                repeated | "shard" >> beam.GroupByKey() | beam.Map(job.write_repeated)

        self._run("reading the text", job, build)
        pairs, hashes = {}, {}
        for corpus, (name, data) in enumerate(config.training_texts.items()):
            pairs[name], hashes[name] = 0, []
            where = []
            for file in sorted((folder / FOUND).glob(f"{corpus}.*.json")):
                found = json.loads(file.read_bytes())
                hashes[name].append(found["hash"])
                if file.with_suffix(".npy").exists():
                    where.append(np.load(file.with_suffix(".npy")))
                pairs[name] += found["pairs"]
                if samples:
                    samples.add_drawn(found["drawn"])
            if data.deduplicate:
                repeated = np.zeros(pairs[name], bool)
                repeated[np.concatenate([np.zeros(0, int), *where])] = True
                save_array(folder / f"repeated.{corpus}.npy", repeated)
        shutil.rmtree(folder / FOUND)
        return pairs, hashes

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
        job, known = _job(config, folder), [*hashes.values()]
        (folder / "train").mkdir(exist_ok=True)
        entries = {
            (corpus, number): job.entry(sum(map(len, known[:corpus])) + number)
            for corpus, own in enumerate(known)
            for number in range(len(own))
        }
        done = frozenset(shard for shard in entries if entries[shard].exists())

        def build(pipeline: beam.Pipeline) -> None:
            shards, _ = _shards(pipeline, job, done)
            given = tokenizer.content, known
            shards | "tokenise" >> beam.FlatMap(_run, job, "tokenise", *given)

        self._run("tokenising", job, build)
        if not all(entry.exists() for entry in entries.values()):
            raise TextChangedError
        found = [json.loads(entry.read_bytes()) for entry in entries.values()]
        write_index(folder / "train", found)

    def _run(
        self, what: str, job: ShardJob, build: Callable[[beam.Pipeline], Any]
    ) -> None:
        """Run a pipeline to its end. Raises the InputError of a worker."""
        pipeline = self._pipeline()
        build(pipeline)
        log.info("corpus: %s by %s", what, self._runner)
        with progress(what):
            pipeline.run().wait_until_finish()
        job.require_no_mistake()


def _job(config: DataConfig, folder: Path) -> ShardJob:
    return ShardJob(config, folder.absolute(), sources.CHUNK, sources.SHARD)


def _shards(
    pipeline: beam.Pipeline, job: ShardJob, done: frozenset[Shard]
) -> tuple[Any, Any]:
    """Return the pieces of each shard, and the counts of the files as a side input."""
    files = [
        (corpus, number)
        for corpus, data in enumerate(job.texts)
        for number in range(len(read_parts(data, "train")))
    ]
    # Without the shuffles one worker would do what follows for all files.
    parts = pipeline | beam.Create(files) | beam.Reshuffle()
    counts = beam.pvalue.AsDict(parts | "count" >> beam.FlatMap(_run, job, "count"))
    pieces = parts | "read" >> beam.FlatMap(_run, job, "read", counts, done)
    return pieces | "shards" >> beam.GroupByKey(), counts


def _run(item: Any, job: ShardJob, step: str, *given: Any) -> Iterable[Any]:
    return job.run(step, item, *given)
