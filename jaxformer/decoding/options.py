"""The options of a search and of a translation, and the models that it uses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jaxformer.config.sections import Config, DecodingConfig, SearchConfig
from jaxformer.config.settings import SEED, setting
from jaxformer.system.errors import InputError

LEAST_TEMPERATURE = 1e-6  # logits divided by less may be infinite
UTILITIES = "bleu", "chrf", "comet"  # metrics of sentences
LENGTH_PENALTIES = {
    "gnmt": "((5 + n) / 6)^alpha, the paper's",
    "power": "n^alpha, that of fairseq, Marian and CTranslate2",
}
LONG_LINES = {
    "split": "translate its parts, cut where a sentence or a clause ends",
    "truncate": "translate its beginning",
    "refuse": "stop with an error",
}


def _listed(choices: dict[str, str]) -> str:
    return "; ".join(map(" is ".join, choices.items()))


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SearchConfig):
    """The kind of search. Raises InputError for impossible values.

    A temperature above 0 draws W independent samples of each sentence. Otherwise
    `beam_size` 1 is greedy search, and more a beam search.
    """

    n_best: int = setting(
        "Translations of each line, at most beam_size of them.", default=1, least=1
    )
    length_penalty: str = setting(
        "What the log-probability of n output tokens, end of sentence included, is "
        f"divided by: {_listed(LENGTH_PENALTIES)}.",
        default="gnmt",
        choices=tuple(LENGTH_PENALTIES),
    )
    no_repeat_ngram: int = setting(
        "No n-gram of so many tokens occurs twice in a translation; 0: no rule.",
        default=0,
        least=0,
        most=100,
    )
    temperature: float = setting(
        "Sample, with logits divided by this, at least 1e-6; 0: search instead.",
        default=0.0,
        least=0,
        most=1000,
    )
    top_k: int = setting(
        "Sample among so many most probable tokens; 0: among all.", default=0, least=0
    )
    top_p: float = setting(
        "Sample among the fewest tokens with this probability together.",
        default=1.0,
        above=0,
        most=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_best > self.beam_size:
            raise InputError(
                f"n_best is {self.n_best}, more than beam_size = {self.beam_size}; "
                "widen the beam"
            )
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise InputError(
                f"temperature is {self.temperature}; it must be 0, for search, or at "
                f"least {LEAST_TEMPERATURE}"
            )
        if not self.is_sampling and (self.top_k or self.top_p < 1):
            raise InputError("top_k and top_p choose among samples; set a temperature")

    @property
    def is_sampling(self) -> bool:
        return self.temperature > 0


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(SearchOptions, DecodingConfig):
    """A search and the treatment of input lines; extends the config's `decoding`."""

    min_length: int = setting(
        "Tokens of a translation at least, end of sentence included.",
        default=0,
        least=0,
        most=1024,
    )
    seed: int = setting("Seed of samples.", default=0, **SEED)
    tag: str = setting(
        "Piece that begins each source without one, such as >>de<<, where a model of "
        "several languages needs it (data.tag).",
        default="",
    )
    target_tag: str = setting(
        "Piece that begins each translation, and is no part of it: the language that "
        "the decoder of M2M-100 and NLLB is told (data.target_tag).",
        default="",
    )
    max_source_length: int | None = setting(
        "Tokens of a line at most, end of sentence included; by default "
        "data.max_length.",
        default=None,
        least=2,
    )
    long_lines: str = setting(
        f"What happens to a longer line: {_listed(LONG_LINES)}.",
        default="split",
        choices=tuple(LONG_LINES),
    )
    split_sentences: bool = setting(
        "Translate each sentence of a line by itself, and join the translations. By "
        "default only the server, jaxformer.Translator and documents do.",
        default=False,
    )


@dataclass(frozen=True)
class TranslateRequest:
    """Options of a translation that a caller gives; a run has the others."""

    given: Mapping[str, object] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        return self.given.get("tag", "")

    @property
    def target_tag(self) -> str:
        return self.given.get("target_tag", "")

    def resolve(self, config: Config, **defaults: object) -> TranslateOptions:
        """Complete the options by `defaults`, then by the config of the run.

        Raises InputError for options that no search has, TypeError for unknown ones.
        """
        data = config.data
        of_run = {"tag": data.only_tag, "target_tag": data.only_target_tag}
        of_run["max_source_length"] = data.max_length
        return TranslateOptions(
            **{**of_run, **vars(config.decoding), **defaults, **self.given}
        )


@dataclass(frozen=True)
class HypothesisChoice:
    """What chooses among the hypotheses of a sentence: a utility, or other models.

    `utility` is one of UTILITIES: the sample of largest mean utility against all
    samples is chosen (Eikema and Aziz 2020). `rerankers` are runs of models that
    score the hypotheses again, with the weights of their scores.
    """

    utility: str = ""
    rerankers: tuple[tuple[Path, float], ...] = ()

    @classmethod
    def of(cls, text: str) -> "HypothesisChoice":
        """Read a utility, or RUN or RUN:WEIGHT between commas.

        Raises InputError for a weight that is not finite.
        """
        if text in UTILITIES:
            return cls(utility=text)
        names = filter(None, map(str.strip, text.split(",")))
        return cls(rerankers=tuple(map(_weighted, names)))

    def __str__(self) -> str:
        weighted = (f"{folder}:{weight:g}" for folder, weight in self.rerankers)
        return self.utility or ",".join(weighted)


def _weighted(name: str) -> tuple[Path, float]:
    folder, _, weight = name.rpartition(":")
    try:
        found = Path(folder), float(weight)
    except ValueError:  # the colon of a URL, or none
        return Path(name), 1.0
    if not math.isfinite(found[1]):
        raise InputError(f"choose has {name}; give a finite weight")
    return found


class CometModel(NamedTuple):
    """A COMET model: its checkpoint, and the Python that loads it, None: this one."""

    checkpoint: Path
    python: Path | None = None

    @classmethod
    def of(cls, text: str) -> "CometModel":
        """Read CHECKPOINT or CHECKPOINT,PYTHON."""
        checkpoint, _, python = map(str.strip, text.partition(","))
        return cls(Path(checkpoint), Path(python) if python else None)


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The parameters of a run, and the models and the terms beside it.

    `checkpoint` is a step, "latest", "best" or "average:N"; None: what the config asks
    for. `ensemble` are runs of models whose probabilities are averaged with the
    run's, with the same choice of a checkpoint. `choose` chooses among hypotheses;
    None: the score of the search. `comet` is the model of the utility "comet". `dtype`
    is the type of the factors of products, of all models, "auto" the type that is
    fastest here; None: that of each config. `glossary` is a file of terms.
    """

    checkpoint: str | None = None
    ensemble: tuple[Path, ...] = ()
    choose: HypothesisChoice | None = None
    comet: CometModel | None = None
    dtype: str | None = None
    glossary: Path | None = None
