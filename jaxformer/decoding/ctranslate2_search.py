"""The search of CTranslate2, in a model that `jaxformer.exports.ctranslate2` wrote.

It differs from `jaxformer.decoding.search`:

- A beam ends once the best hypothesis and 2 W hypotheses have ended, and the best W by
  our length penalty are kept.
- A beam normalises probabilities without the tokens that a rule forbids. Afterwards
  its hypotheses are scored again.
- A hypothesis at its greatest length is cut, and then ended and scored again.
- log P leaves out PAD, UNK and BOS, which have hardly any probability.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.decoding.engine import Task, TaskQueue
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.search import SearchResult, length_penalty
from jaxformer.models.sequence_model import Parameters
from jaxformer.system.cores import usable_cores
from jaxformer.system.errors import InputError, packages_of
from jaxformer.system.files import digest
from jaxformer.tokens import BOS, EOS, PAD, AnyTokenizer, pad_rows

if TYPE_CHECKING:
    import ctranslate2

    from jaxformer.decoding.forced import TeacherForcing

# Rows of an exported table of sinusoids, 8 MB for the base model. CTranslate2 truncates
# sources to 1,024 pieces by default and refuses sequences longer than the table.
POSITIONS = 4096


class CTranslate2Search:
    """The search of an export in a folder; a `jaxformer.decoding.translator.Search`.

    `positions` are those of the model, None for sinusoids. So many `searches` share the
    cores. Raises InputError if the package is missing, if it cannot load the export,
    and for samples.
    """

    params: Sequence[Parameters] = ()
    forcing: "TeacherForcing | None" = None

    def __init__(
        self,
        folder: Path,
        tokenizer: AnyTokenizer,
        options: TranslateOptions,
        *,
        positions: int | None,
        searches: int,
    ) -> None:
        if options.is_sampling:
            raise InputError(
                "an export draws no samples that a seed gives again; leave out the "
                "temperature, or use the run that it was made from"
            )
        with packages_of("export"):
            import ctranslate2
        threads = {"inter_threads": searches}
        threads["intra_threads"] = max(1, usable_cores() // searches)
        try:
            self._translator = ctranslate2.Translator(str(folder), **threads)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{folder} cannot be loaded by CTranslate2 ({error}); export it again"
            ) from None
        self.positions, self._searches = positions or POSITIONS, searches
        self._file, self._options = folder / "model.bin", options
        self._source_names, self._names = tokenizer.source_pieces(), tokenizer.pieces()
        self._ids = {name: index for index, name in enumerate(self._names)}
        beam = options.beam_size
        # Without a length penalty, the search ends with the best hypothesis.
        is_one = beam == 1 or (options.alpha == 0 and options.n_best == 1)
        count = 1 if is_one else 2 * beam
        self._how = {
            "beam_size": beam,
            "num_hypotheses": count,
            "patience": 1 if is_one else 2,
            "length_penalty": 0,  # scores are log P
            "no_repeat_ngram_size": options.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[self._names[PAD]], [self._names[BOS]]],
            "max_input_length": 0,
            "return_scores": True,
            "return_end_token": True,
        }

    def release(self) -> None:
        """Keep the model, which is in no array of a device."""

    def identity(self) -> dict[str, object]:
        """Return the hash of the model's file."""
        return {"parameters": digest(self._file)}

    def require(self, task: Task) -> None:
        """Raise InputError for a task with phrases."""
        if task.phrases:
            raise InputError(
                "an export has no search for phrases; leave them out, or use the run "
                "that it was made from"
            )

    def run(
        self, tasks: Sequence[Task], check_stop: Callable[[], None] = lambda: None
    ) -> None:
        """Pass the result of each task to its `done`; `check_stop` may raise."""
        for task in tasks:
            self.require(task)
        begun: deque = deque()
        for batch in self._batches(tasks):
            begun.append((batch, self._begin(batch)))
            if len(begun) > self._searches:
                self._finish(*begun.popleft())
                check_stop()
        for each in begun:
            self._finish(*each)
            check_stop()

    def _batches(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Divide tasks, longest source first, into at least `searches` batches."""
        tasks = sorted(tasks, key=lambda task: -len(task.source))
        share = -(-len(tasks) // self._searches)
        while tasks:
            fits = self._options.batch_tokens // len(tasks[0].source)
            size = max(1, min(share, fits))
            yield tasks[:size]
            del tasks[:size]

    def _begin(
        self, tasks: Sequence[Task]
    ) -> "list[ctranslate2.AsyncTranslationResult]":
        # CTranslate2 counts lengths without EOS.
        most = max(task.max_length for task in tasks) - 1
        least = min(most, max(task.min_length for task in tasks) - 1)
        prefixes = [self._pieces(task.prefix) for task in tasks]
        return self._translator.translate_batch(
            [*map(self._source, tasks)],
            prefixes if any(prefixes) else None,
            max_decoding_length=max(1, most),
            min_decoding_length=max(0, least),
            asynchronous=True,
            **self._how,
        )

    def _source(self, task: Task) -> list[str]:
        """The pieces of a source without EOS, which CTranslate2 adds."""
        return [self._source_names[token] for token in task.source[:-1]]

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[token] for token in ids]

    def _finish(
        self,
        tasks: Sequence[Task],
        results: "Sequence[ctranslate2.AsyncTranslationResult]",
    ) -> None:
        """Wait for a batch; report the best hypotheses of each task."""
        owners, rows, log_probabilities, partial = [], [], [], []
        for number, (task, begun) in enumerate(zip(tasks, results, strict=True)):
            result = begun.result()
            # The search scores no prefix, and leaves out what a rule forbids.
            has_rule = len(task.prefix) > task.unscored or task.min_length > 1
            has_rule |= self._options.no_repeat_ngram > 0
            for pieces, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self._ids[piece] for piece in pieces]
                is_cut = ids[-1:] != [EOS] or len(ids) > task.max_length
                if is_cut or has_rule:
                    partial.append(len(rows))
                rows.append([*ids[: task.max_length - 1], EOS] if is_cut else ids)
                log_probabilities.append(score)
                owners.append(number)
        values = np.array(log_probabilities, np.float32)
        if partial:
            given = [(tasks[owners[index]], rows[index]) for index in partial]
            values[partial] = self._log_probabilities(given)
        lengths = np.array([*map(len, rows)], np.int32)
        scores = values / length_penalty(lengths, self._options)
        for number, task in enumerate(tasks):
            own = np.flatnonzero(np.array(owners) == number)
            own = own[np.argsort(-scores[own], kind="stable")]
            own = own[: self._options.beam_size]
            tokens = pad_rows([rows[index] for index in own], lengths[own].max())
            task.done(SearchResult(tokens, lengths[own], scores[own], values[own]))

    def _log_probabilities(
        self, found: Sequence[tuple[Task, list[int]]]
    ) -> list[float]:
        """Score hypotheses, without their given tags, by teacher forcing."""
        scored = self._translator.score_batch(
            [self._source(task) for task, _ in found],
            [self._pieces(ids[:-1]) for _, ids in found],
            max_batch_size=self._options.batch_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        each = zip(found, scored, strict=True)
        return [sum(own.log_probs[task.unscored :]) for (task, _), own in each]


class CTranslate2Engine:
    """The waiting tasks of a server, which `advance` translates a few at a time.

    It has the methods of `jaxformer.decoding.engine.Engine` that a `RequestQueue`
    needs. A turn takes at most `slots` tasks.
    """

    def __init__(self, search: CTranslate2Search, slots: int) -> None:
        self._search, self._slots, self._queue = search, slots, TaskQueue()

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of waiting tasks and of tasks in flight, of which there are none.

        Nothing is in flight between two calls.
        """
        return len(self._queue.tasks), 0

    def submit(self, task: Task) -> None:
        """Queue a task. Raises InputError for one with phrases."""
        self._search.require(task)
        self._queue.submit(task)

    def cancel(self, request: object) -> None:
        """Drop the tasks of a request."""
        self._queue.cancel(request)

    def advance(self, most: int) -> None:
        """Translate the next tasks; the number of steps is that of the search."""
        self._search.run(self._queue.take(self._slots))

    def wait(self) -> None:
        """Do nothing: `advance` waits for its tasks."""
