"""The search of CTranslate2 in a model that `jaxformer.exports.ctranslate2` wrote.

It differs from `jaxformer.decoding.search`:

- A beam ends once 2 W hypotheses and the best live one have ended. The best W by our
  length penalty are kept.
- Probabilities are normalised without PAD, UNK, BOS and what a rule forbids. If there
  are rules, hypotheses are scored again afterwards.
- A hypothesis at its greatest length is cut, then ended and scored again.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.decoding.engine import Task
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.search import SearchResult, length_penalty
from jaxformer.system.cores import usable_cores
from jaxformer.system.errors import InputError, packages_of
from jaxformer.tokens import BOS, EOS, PAD, AnyTokenizer, pad_rows

if TYPE_CHECKING:
    import ctranslate2

    Results = list[ctranslate2.AsyncTranslationResult]

# Rows of an exported table of sinusoids, 8 MB for the base model. CTranslate2 truncates
# sources to 1,024 pieces by default and refuses sequences longer than the table.
POSITIONS = 4096


class CTranslate2Search:
    """The search of an export in a folder; `searches` batches at once share the cores.

    Raises InputError if the package is missing or cannot load it, or for samples.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: AnyTokenizer,
        options: TranslateOptions,
        searches: int,
    ) -> None:
        if options.is_sampling:
            raise InputError(
                "an export draws no samples that a seed gives again; leave out the "
                "temperature, or use the run that it was made from"
            )
        with packages_of("export"):
            import ctranslate2
        threads = max(1, usable_cores() // searches)
        how = {"inter_threads": searches, "intra_threads": threads}
        try:
            self._translator = ctranslate2.Translator(str(folder), **how)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{folder} cannot be loaded by CTranslate2 ({error}); export it again"
            ) from None
        self._searches, self._options = searches, options
        self._source_names, self._names = tokenizer.source_pieces(), tokenizer.pieces()
        self._ids = {name: index for index, name in enumerate(self._names)}
        beam = options.beam_size
        # Without a length penalty, the search ends with the best hypothesis.
        beams = 1 if beam == 1 or (options.alpha == 0 and options.n_best == 1) else 2
        self._how = {
            "beam_size": beam,
            "num_hypotheses": 1 if beams == 1 else 2 * beam,
            "patience": beams,
            "length_penalty": 0,  # scores are log P
            "no_repeat_ngram_size": options.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[self._names[PAD]], [self._names[BOS]]],
            "max_input_length": 0,
            "return_scores": True,
            "return_end_token": True,
        }

    def require(self, task: Task) -> None:
        """Raise InputError for a task with phrases."""
        if task.phrases:
            raise InputError(
                "an export has no search for phrases; leave them out, or use the run "
                "that it was made from"
            )

    def run(self, tasks: Sequence[Task], check_stop: Callable[[], None]) -> None:
        """Pass the result of each task to its `done`; `check_stop` may raise."""
        for task in tasks:
            self.require(task)
        begun: deque = deque()
        # A batch in which any task has a prefix is searched in another way.
        kinds = [t for t in tasks if not t.prefix], [t for t in tasks if t.prefix]
        for batch in itertools.chain.from_iterable(map(self._batches, kinds)):
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

    def _begin(self, tasks: Sequence[Task]) -> "Results":
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

    def _finish(self, tasks: Sequence[Task], results: "Results") -> None:
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
            scored = self._translator.score_batch(
                [self._source(tasks[owners[index]]) for index in partial],
                [self._pieces(rows[index][:-1]) for index in partial],
                max_batch_size=self._options.batch_tokens, batch_type="tokens",
                max_input_length=0,
            )  # fmt: skip
            for index, found in zip(partial, scored, strict=True):
                given = tasks[owners[index]].unscored
                values[index] = sum(found.log_probs[given:])
        lengths = np.array([*map(len, rows)], np.int32)
        scores = values / length_penalty(lengths, self._options)
        for number, task in enumerate(tasks):
            own = np.flatnonzero(np.array(owners) == number)
            own = own[np.argsort(-scores[own])][: self._options.beam_size]
            tokens = pad_rows([rows[index] for index in own], lengths[own].max())
            sums = np.zeros((len(own), 0), np.float32)  # of each token: not known
            found = lengths[own], scores[own], values[own], sums
            task.done(SearchResult(tokens, *found))


class CTranslate2Engine:
    """The waiting tasks of a server, of which `advance` translates at most `slots`.

    It has the methods of `Engine` that a `RequestQueue` uses.
    """

    def __init__(self, search: CTranslate2Search, slots: int) -> None:
        self._search, self._slots = search, slots
        self._waiting: list[Task] = []

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of waiting tasks, and of tasks in flight: none."""
        return len(self._waiting), 0

    def submit(self, task: Task) -> None:
        """Queue a task. Raises InputError for one with phrases."""
        self._search.require(task)
        self._waiting.append(task)

    def cancel(self, request: object) -> None:
        """Drop the tasks of a request."""
        self._waiting = [task for task in self._waiting if task.request is not request]

    def advance(self, steps: int) -> None:
        """Translate the next tasks, in as many steps as that takes."""
        tasks = self._waiting[: self._slots]
        del self._waiting[: self._slots]
        self._search.run(tasks, lambda: None)

    def wait(self) -> None:
        """Do nothing: `advance` waits for its tasks."""
