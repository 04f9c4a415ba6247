"""Prepare training text shard by shard: the functions of Beam's workers.

They make the same files as `jaxformer.corpus.preparation` in one process, byte for
byte.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.corpus.shared_folder import SharedFolder
from jaxformer.corpus.store import id_dtype, names_of, save_array, write_shard
from jaxformer.system.errors import InputError, LostConnectionError
from jaxformer.system.files import write_atomically
from jaxformer.text.cleaning import Chunk, CorpusReport, clean_chunk
from jaxformer.text.duplicates import pair_digests
from jaxformer.text.lines import normalise
from jaxformer.text.sources import Pair, read_pairs, read_parts
from jaxformer.text.text_hash import TextChangedError, TextHash
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.vocabulary import VocabularySamples

# Begin the names of folders, in that of an unfinished corpus, that pipelines write.
FOUND, SHARDS = "found", "shards"

# Which file and which shard of which training text; both numbers count from 0.
File = tuple[int, int]
Shard = tuple[int, int]
Piece = tuple[int, list[Pair]]  # pairs of a text, after the place of the first one


class Counts(NamedTuple):
    """Pairs of a text, and its sources and targets that are not blank."""

    pairs: int
    sources: int
    targets: int


class ShardJob(NamedTuple):
    """The work of one pipeline; its methods run on the workers."""

    config: DataConfig
    files: list[list[tuple[str, str]]]  # names of sources and targets, by corpus
    partial: SharedFolder  # has which pairs are repeated
    folder: SharedFolder  # what this job writes
    chunk_size: int  # pairs
    shard_size: int

    def noting_mistakes(self, step: str, *given: object) -> Iterator[object]:
        """Yield what the method called `step` yields.

        A mistake of the user is written to a file, and later calls yield nothing: a
        runner would try again, and show tracebacks.
        """
        if self._mistakes():
            return
        try:
            yield from getattr(self, step)(*given)
        except LostConnectionError:
            raise  # the runner tries again
        except InputError as error:
            found = [isinstance(error, TextChangedError), str(error)]
            self._write(f"mistake.{uuid.uuid4().hex}.json", found)

    def require_no_mistake(self) -> None:
        """Raise the InputError that a worker met, if there is one."""
        for name in self._mistakes():
            has_changed, message = json.loads(self.folder.read(name))
            raise TextChangedError if has_changed else InputError(message)

    def forget_mistakes(self) -> None:
        """Remove the mistakes of an earlier command."""
        for name in self._mistakes():
            self.folder.remove(name)

    def _mistakes(self) -> list[str]:
        return [name for name in self.folder.names() if name.startswith("mistake.")]

    def _write(self, name: str, found: object) -> None:
        """Write values of JSON to a file."""
        with self.folder.writing() as folder:
            write_atomically(folder / name, json.dumps(found))

    def _pairs(self, file: File) -> Iterator[Pair]:
        """Read a file. Raises InputError if it is another one here."""
        corpus, number = file
        data, names = self.texts[corpus], self.files[corpus]
        found = [part[:2] for part in read_parts(data, "train")]
        if [*map(tuple, found)] != [*map(tuple, names)]:
            raise InputError(
                f"a worker finds {len(found)} files of training text and the first "
                f"machine {len(names)}, among them {names[number][0]}; give all of "
                "them the same files"
            )
        return read_pairs(data, "train", number)

    @property
    def texts(self) -> list[DataConfig]:
        """The sections of the training texts."""
        return [*self.config.training_texts.values()]

    def count(self, file: File) -> Iterator[tuple[File, Counts]]:
        """Count the pairs of a file."""
        tag, pairs, sources, targets = self.texts[file[0]].tag, 0, 0, 0
        for source, target in self._pairs(file):
            pairs += 1
            sources += bool(normalise(source.removeprefix(tag)))
            targets += bool(normalise(target))
        yield file, Counts(pairs, sources, targets)

    def read(
        self, file: File, counts: Mapping[File, Counts], done: frozenset[Shard]
    ) -> Iterator[tuple[Shard, Piece]]:
        """Yield the pairs of a file that are of shards not `done`."""
        corpus, number = file
        place = sum(counts[corpus, own].pairs for own in range(number))
        pairs = self._pairs(file)
        while own := [*islice(pairs, self.chunk_size - place % self.chunk_size)]:
            shard = corpus, place // self.shard_size
            if shard not in done:
                yield shard, (place, own)
            place += len(own)

    def survey(
        self, shard: tuple[Shard, Iterable[Piece]], counts: Mapping[File, Counts]
    ) -> Iterator[tuple[tuple[int, bytes], int]]:
        """Write what is found in a shard; yield the hashes and places of its pairs."""
        (corpus, number), pieces = shard
        _, *texts = map(sum, zip(*counts.values(), strict=True))
        samples, text = VocabularySamples(self.config, tuple(texts)), TextHash()
        earlier = sum(own.pairs for file, own in counts.items() if file[0] < corpus)
        data = self.texts[corpus]
        for place, pairs in sorted(pieces):
            samples.add(earlier + place, pairs, data.tag)
            text.add(pairs)
            if data.deduplicate:
                for index, digest in enumerate(pair_digests(pairs), start=place):
                    yield (corpus, digest), index
        drawn = [sample.drawn for sample in samples.samples]
        found = {"pairs": text.pairs, "hash": text.shards[0], "drawn": drawn}
        self._write(f"{corpus}.{number:05}.json", found)

    def repeated(
        self, digest: tuple[tuple[int, bytes], Iterable[int]]
    ) -> Iterator[tuple[Shard, int]]:
        """Yield the places of the pairs with one hash, but for the first of them."""
        (corpus, _), places = digest
        for place in sorted(places)[1:]:
            yield (corpus, place // self.shard_size), place

    def write_repeated(self, shard: tuple[Shard, Iterable[int]]) -> None:
        """Write the places of a shard's pairs that occurred before: int64 [n]."""
        (corpus, number), places = shard
        with self.folder.writing() as folder:
            file = folder / f"{corpus}.{number:05}.npy"
            save_array(file, np.array(sorted(places)))

    def tokenise(
        self,
        shard: tuple[Shard, Iterable[Piece]],
        tokenizer: bytes,
        hashes: Sequence[Sequence[str]],
    ) -> Iterator[Shard]:
        """Write the files of a shard, and last its entry of the index; yield its name.

        `tokenizer` is the content of a tokeniser, `hashes` those of all shards by
        corpus. Raises TextChangedError.
        """
        (corpus, number), pieces = shard
        pieces, text = sorted(pieces), TextHash()
        for _, pairs in pieces:
            text.add(pairs)
        if text.shards != [*hashes[corpus][number : number + 1]]:
            raise TextChangedError
        name, data = [*self.config.training_texts.items()][corpus]
        repeated, chunks, report = None, [], CorpusReport()
        first = pieces[0][0]
        if data.deduplicate:
            repeated = self.partial.read_array(
                f"repeated.{corpus}.npy", first, first + text.pairs
            )
        for place, pairs in pieces:
            own = None
            if repeated is not None:
                own = repeated[place - first :][: len(pairs)]
            chunk = clean_chunk(tokenizer, 1, data, Chunk(pairs, own, data.target_tag))
            chunks.append(chunk.ids)
            report += chunk.report
        size = id_dtype(Tokenizer(tokenizer).largest_vocab_size)
        index = sum(map(len, hashes[:corpus])) + number
        with self.folder.writing() as folder:
            dtypes = dict.fromkeys(names_of(data.version_count), size)
            write_shard(folder, index, dtypes, chunks)
        entry = {"corpus": name, "report": asdict(report)}
        self._write(entry_name(index), entry)
        yield corpus, number


def entry_name(index: int) -> str:
    """The name of the file that says that a shard is complete."""
    return f"{index:05}.entry.json"
