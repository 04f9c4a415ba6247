"""The public API: commands as functions, and a trained run as an object."""

import importlib
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from jaxformer.commands import command_line
from jaxformer.commands.flags import FLAGS
from jaxformer.decoding.forced import Attention, PairScore, Side
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.parts import Hypothesis, one_each
from jaxformer.runs.open import open_translator, open_utility
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import of_tags
from jaxformer.system.errors import InputError as InputError
from jaxformer.system.progress import LAST_LINE, compiles_reported, progress

if TYPE_CHECKING:
    from jaxformer.reports.attention import AttentionView

_BLOCK = 1000  # strings of an iterator that are translated together
_Result = TypeVar("_Result")


@contextmanager
def _logging_unchanged() -> Iterator[None]:
    """Print warnings as if logging were not configured, if it is not.

    A message of absl, which orbax uses, would configure it for the whole program.
    """
    if logging.root.handlers:
        yield
        return
    logging.root.addHandler(logging.lastResort)
    try:
        yield
    finally:
        logging.root.removeHandler(logging.lastResort)


class Translator:
    """A trained run that translates.

    `checkpoint` is a step, "latest", "best" or "average:N"; `ensemble` names runs of
    further models, whose probabilities are averaged with this one's. `choose` takes one
    of the hypotheses: "bleu", "chrf" or "comet" by minimum Bayes risk, or
    "RUN,RUN:WEIGHT" by models of the same or the opposite direction. `comet` is the
    model of choose="comet": CHECKPOINT or "CHECKPOINT,PYTHON". `dtype` is the type of
    the factors of products, "float32", "bfloat16" or "auto", the fastest here.
    None stands for the value of the run's config. Threads may share a translator: their
    translations take turns. Raises InputError for a run that cannot be opened.
    """

    @_logging_unchanged()
    def __init__(
        self,
        workdir: str | Path,
        *,
        checkpoint: int | str | None = None,
        ensemble: Sequence[str | Path] = (),
        choose: str | None = None,
        comet: str | Path | None = None,
        dtype: str | None = None,
        beam_size: int | None = None,
        alpha: float | None = None,
        extra_length: int | None = None,
        batch_tokens: int | None = None,
        n_best: int = 1,
        length_penalty: str = "gnmt",
        no_repeat_ngram: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_length: int = 0,
        seed: int = 0,
        tag: str | None = None,
        target_tag: str | None = None,
        max_source_length: int | None = None,
        long_lines: str = "split",
        split_sentences: bool = True,
    ) -> None:
        flags = _parse("translate", locals())
        models, options = flags["models"], flags["options"]
        run = of_tags(open_run(flags["workdir"], flags["config"], dtype), options)
        self.options = options.resolve(run.config)
        utility = open_utility(models)
        self._translator = open_translator(run, models, self.options, utility)
        self._lock = threading.Lock()

    @overload
    def __call__(self, sentences: str) -> str: ...
    @overload
    def __call__(self, sentences: Iterator[str]) -> Iterator[str]: ...
    @overload
    def __call__(self, sentences: Sequence[str]) -> list[str]: ...
    def __call__(self, sentences: Iterable[str]) -> str | Iterable[str]:
        """Return the best translation of a text, or of each of several.

        See `translate`. A blank text stays blank; one of unknown characters is copied,
        with a warning.
        """
        found = self.translate(sentences)
        if isinstance(sentences, str):
            return found[0].text
        texts = (hypotheses[0].text for hypotheses in found)
        return texts if isinstance(sentences, Iterator) else list(texts)

    @overload
    def translate(
        self,
        sentences: str,
        *,
        prefixes: str | None = None,
        phrases: Sequence[str] | None = None,
    ) -> list[Hypothesis]: ...
    @overload
    def translate(self, sentences: Iterator[str]) -> Iterator[list[Hypothesis]]: ...
    @overload
    def translate(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Hypothesis]]: ...
    def translate(
        self,
        sentences: Iterable[str],
        *,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> Iterable[Hypothesis] | Iterable[list[Hypothesis]]:
        """Return the n_best hypotheses of a text, best first, or of each of several.

        A string gives a list of hypotheses, a list of strings a list of such lists, and
        an iterator an iterator, which reads 1,000 strings at a time. There are fewer
        than n_best if the beam holds fewer different texts. `prefixes` are the forced
        beginnings of the translations: a string for a string, and a list for a list.
        `phrases` are what a translation contains: a list for a string, and a list of
        lists for a list. Raises InputError if they do not fit, and for a line that is
        too long, if the options refuse it; TypeError for what is no text.
        """
        given = {"prefixes": prefixes, "phrases": phrases}
        if isinstance(sentences, Iterator):
            if any(value is not None for value in given.values()):
                raise TypeError("an iterator has no prefixes and phrases; give a list")
            return self._stream(sentences)
        if not isinstance(sentences, str):
            sentences = _texts(sentences)
        with self._lock:
            return self._translator.translate(sentences, **given)

    def _stream(self, sentences: Iterator[str]) -> Iterator[list[Hypothesis]]:
        first = 0
        while texts := _texts(islice(sentences, _BLOCK)):
            with self._lock:
                found = self._translator.translate(texts, first=first)
            first += len(texts)
            yield from found

    def score(
        self, sources: Sequence[Side], targets: Sequence[Side]
    ) -> list[PairScore]:
        """Score given translations, token by token, with the run's own model.

        A side is a text, or the pieces of a `Hypothesis`, whose log-probability it is
        again. Raises InputError for pieces that do not fit.
        """
        for texts in (sources, targets):
            if isinstance(texts, str):
                raise TypeError(f"{texts!r:.60} is one text; give a list of texts")
        return self._translator.score(sources, targets)

    def attention(self, source: Side, target: Side) -> Attention:
        """Return the attention maps of one pair; see `score`.

        Raises InputError for a pair of several parts.
        """
        return self._translator.attention(source, target)

    def attention_of_parts(self, source: Side, target: Side) -> list[Attention]:
        """Return the attention maps of each part of a pair."""
        return self._translator.attention_of_parts(source, target)


Translator.__doc__ = f"{Translator.__doc__}\n" + "".join(
    f"        {field.name}: {field.metadata['meaning']}\n"
    for field in fields(TranslateOptions)
)


def attention_view(
    translator: Translator,
    sources: str | Sequence[str],
    targets: str | Sequence[str] | None = None,
) -> "AttentionView":
    """Return the attention of each head as charts, pictures and a page.

    Sentences without `targets` are translated first; a translator opened with n_best=4
    shows four hypotheses of each. Raises InputError if jaxformer[report] is not
    installed, and for no, too many or too long sentences.
    """
    from jaxformer.reports.attention import AttentionView
    from jaxformer.reports.attention_data import attend

    sources = _texts(sources)
    if targets is not None:
        targets = one_each("targets", _texts(targets), len(sources), default="")
    with translator._lock:
        return AttentionView(attend(translator._translator, sources, targets))


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. A stopped one has no scores: they are None."""

    step: int  # updates made
    stopped: bool = False  # by Ctrl-C or SIGTERM; the same call resumes
    loss: float | None = None  # with label smoothing, of the validation text
    nll: float | None = None  # nats a token
    ppl: float | None = None
    bleu: float | None = None  # 0 to 100
    signature: str = ""  # how sacreBLEU computed it
    direction: str = ""  # "en-de": from English to German
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class EvaluateResult:
    """Scores of a text; an ensemble has neither `nll` nor `ppl`."""

    bleu: float  # 0 to 100, as `bleu_lc_tok` and `chrf`
    signature: str  # how sacreBLEU computed it
    bleu_lc_tok: float  # of lower-cased tokens
    chrf: float
    nll: float | None  # nats a token
    ppl: float | None
    direction: str  # "en-de": from English to German
    sentences: int
    every_bleu: list[dict[str, Any]]  # "scorer", "bleu" and "signature" of each scorer
    comet: float | None = None
    comet_signature: str = ""


@dataclass(frozen=True)
class CheckResult:
    """What a run would do; None where this backend does not say."""

    pairs: int  # of the training text
    parameters: int
    updates_per_epoch: int
    epochs: float  # in training.steps
    seconds_per_update_estimate: float | None
    bytes_per_device: int | None  # that the train step needs
    bytes_available: int | None
    fits: bool | None
    largest_microbatches: dict[str, Any] | None  # if memory_gib is given
    corpus: dict[str, Any]  # what the text holds


@dataclass(frozen=True)
class ExportResult:
    """An exported model."""

    format: str
    output: str  # the new folder
    quantization: str
    parameters: int
    bytes: int


def train(
    config: str | Path | None,
    workdir: str | Path,
    *,
    overrides: Mapping[str, object] | None = None,
    init_from: str | Path | None = None,
) -> TrainResult:
    """Prepare what is missing, then train or resume, as `jaxformer train` does.

    `config` is a file, or the name of a config of jaxformer; None: that of the run.
    `overrides` replace its values, as in {"training.steps": 100}. In the main thread
    Ctrl-C and SIGTERM end training with the step saved. Raises InputError.
    """
    return _run("train", TrainResult, locals())


def check(
    config: str | Path | None,
    workdir: str | Path | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    init_from: str | Path | None = None,
    memory_gib: float | None = None,
    output: str | Path | None = None,
) -> CheckResult:
    """Check text, batches, memory and time; train nothing, as `jaxformer check` does.

    The arguments are as for `train`. `memory_gib` also finds the largest microbatch for
    so much memory. `output` gets a page about the text.
    """
    return _run("check", CheckResult, {**locals(), "json": True})


def evaluate(
    workdir: str | Path,
    *,
    split: str = "test",
    source: str | Path | None = None,
    reference: str | Path | None = None,
    output: str | Path | None = None,
    checkpoint: int | str | None = None,
    ensemble: Sequence[str | Path] = (),
    comet: str | Path | None = None,
    dtype: str | None = None,
    beam_size: int | None = None,
    alpha: float | None = None,
    tag: str | None = None,
    target_tag: str | None = None,
) -> EvaluateResult:
    """Translate and score a split, or two files, as `jaxformer evaluate` does.

    `output` gets a translation a line, and `comet` adds its score. The others are as
    for `Translator`.
    """
    return _run("evaluate", EvaluateResult, locals())


def export(
    workdir: str | Path,
    output: str | Path,
    *,
    format: str,
    quantization: str = "float32",
    license: str | None = None,
    checkpoint: int | str | None = None,
) -> ExportResult:
    """Write a model as the new folder `output`, as `jaxformer export` does.

    `format` is "ctranslate2", which has a `quantization`, or "huggingface", whose card
    states the `license`.
    """
    return _run("export", ExportResult, locals())


@_logging_unchanged()
def _run(mode: str, kind: type[_Result], given: Mapping[str, object]) -> _Result:
    """Run a command; return those of its results that `kind` has."""
    flags = _parse(mode, given)
    command = importlib.import_module(f"jaxformer.commands.{mode}")
    for handler in logging.root.handlers:
        handler.addFilter(LAST_LINE)  # progress is logged where nothing else is
    with compiles_reported(), progress(mode):
        found = command.run(**flags)
    names = [field.name for field in fields(kind)]
    return kind(**{key: found[key] for key in names if key in found})


def _parse(mode: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the keyword arguments of a command for those of a function, `given`.

    A name that is no flag is a key of the section `decoding`.
    """
    argv = [mode]
    for name, value in given.items():
        if name == "overrides":
            for key, own in (value or {}).items():
                own = json.dumps(own) if isinstance(own, list | tuple) else own
                argv.append(f"--config.{key}={own}")
        elif isinstance(value, bool):
            argv.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None and name != "self":
            if isinstance(value, list | tuple):
                value = ",".join(map(str, value))
            is_flag = name in FLAGS or name == "config"
            argv.append(f"--{name if is_flag else f'config.decoding.{name}'}={value}")
    return command_line.parse(argv).flags


def _texts(sentences: Iterable[str]) -> list[str]:
    """Return texts, or a single one, as a list. Raises TypeError for anything else."""
    is_one = isinstance(sentences, str | bytes) or not isinstance(sentences, Iterable)
    texts = [sentences] if is_one else list(sentences)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(
                f"{text!r:.60} is no text; give a string, a list of strings or an "
                "iterator of strings"
            )
    return texts
