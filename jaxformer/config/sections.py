"""The config of a run: every key with its meaning, type and bounds.

A config has seven sections. Five are the dataclasses of this file, `data` is that of
`jaxformer.config.data`, and `model` that of an architecture in `jaxformer.models`.
Values live in `configs/*.py` only. `--help`, the reference page and every check of a
value are made from here.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxformer.config.data import DataConfig
from jaxformer.config.settings import MOST_LENGTH, SEED, Section, setting
from jaxformer.system.errors import InputError, counted

BEST_BY = "bleu", "chrf", "nll"  # scores that can choose a checkpoint


@dataclass(frozen=True, kw_only=True)
class BatchesConfig(Section, name="batches"):
    """How sentence pairs share batches (section 5.1)."""

    layout: str = setting(
        '"packed": several pairs in a row, one static shape; "buckets": one pair in a '
        "row, grouped by length.",
        choices=("packed", "buckets"),
    )
    row_length: int = setting('Tokens of a "packed" row.', least=1, most=MOST_LENGTH)
    max_shapes: int = setting('Static shapes of "buckets", at most.', least=1, most=255)
    row_multiple: int = setting("Every batch has a multiple of so many rows.", least=1)
    executor: str = setting(
        "What reads batches: tf.data where TensorFlow is installed, else a thread; or "
        '"python", always a thread. Both read the same.',
        choices=("tf.data", "python"),
        free=True,
    )


def most_rows(tokens: int, length: int, multiple: int) -> int:
    """Return the most rows of a microbatch. Raises InputError if it holds none."""
    rows = tokens // length // multiple * multiple
    if not rows:
        raise InputError(
            f"training.tokens_per_microbatch={tokens} does not hold "
            f"{counted(multiple, 'row')} of {counted(length, 'token')}; raise it or "
            "lower the length of a row"
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section, name="optimizer"):
    """The rule of the updates and its learning rate (section 5.3)."""

    algorithm: str = setting(
        "The paper: adam; with weight_decay it is AdamW (Loshchilov and Hutter 2019). "
        "adafactor (Shazeer and Stern 2018) keeps one number for each row and column "
        "of a matrix, and its rate is relative to the size of a parameter.",
        choices=("adam", "adafactor"),
    )
    schedule: str = setting(
        "Learning rate after the warm-up: inverse_sqrt (equation 3), constant, or "
        "linear or cosine, which fall towards 0 at training.steps.",
        choices=("inverse_sqrt", "constant", "linear", "cosine"),
        free=True,
    )
    peak_learning_rate: float | None = setting(
        "Learning rate at the end of the warm-up; None: that of equation 3, "
        "(d_model * warmup_steps)^-0.5.",
        above=0,
        most=1000,
        free=True,
    )
    warmup_steps: int = setting(
        "Updates of the warm-up (equation 3).", least=1, free=True
    )
    weight_decay: float = setting(
        "Share of each matrix that is subtracted, times the learning rate; none of "
        "biases and norms.",
        least=0,
        below=1,
    )
    beta1: float = setting("Decay of Adam's first moment.", least=0, below=1)
    beta2: float = setting("Decay of Adam's second moment.", least=0, below=1)
    epsilon: float = setting("Adam's epsilon.", above=0)
    clip_norm: float | None = setting(
        "Largest global norm of the mean gradient; None: no clipping.", above=0
    )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Section, name="training"):
    """The training loop (sections 5 and 6.1)."""

    steps: int = setting("Updates of the whole run.", least=1, free=True)
    seed: int = setting("Seed of parameters, dropout and order of data.", **SEED)
    tokens_per_update: int = setting(
        "Source tokens of an update, and target tokens, padding included.", least=1
    )
    tokens_per_microbatch: int = setting(
        "The same of what one device program takes at a time.", least=1, free=True
    )
    rematerialise: bool = setting(
        "Recompute layers in the backward pass: less memory, 1/3 more work.", free=True
    )
    label_smoothing: float = setting("Epsilon of section 5.4.", least=0, below=1)
    init_from: str = setting(
        "Run to begin with, by --init_from: the parameters that translate would use, "
        "and the tokeniser; empty: none.",
    )
    initial_embeddings: str = setting("word2vec file to start from; empty: none.")
    freeze: tuple[str, ...] = setting(
        "Parameters that stay as they begin, by name or by the first parts of the "
        "name: embedding, encoder, decoder/layer_0.",
    )
    on_divergence: str = setting(
        'What 10 non-finite updates in a row do: "stop" ends the run, and "rollback" '
        "resumes before them and skips their data.",
        choices=("stop", "rollback"),
        free=True,
    )
    ema_decay: float | None = setting(
        "Decay of the parameters' moving average; None: no average.", least=0, below=1
    )
    log_every: int = setting("Updates between two log lines.", least=1, free=True)
    eval_every: int = setting("Updates between two evaluations.", least=1, free=True)
    best_by: str = setting(
        "Score of the validation text that says which checkpoint is the best: bleu, "
        "chrf or nll. Of several texts that of the first, or NAME/bleu, mean/bleu, ...",
        free=True,
    )
    patience: int | None = setting(
        "Evaluations in a row without a better score that end the run; translate then "
        "uses the best checkpoint. None: the run makes all updates.",
        least=1,
        free=True,
    )
    save_every: int = setting("Updates between two checkpoints.", least=1, free=True)
    keep: int = setting("Newest checkpoints kept besides the best.", least=1, free=True)
    trackers: tuple[str, ...] = setting(
        "What records the run besides TensorBoard: wandb, its numbers; profile, a "
        "trace of 10 updates in RUN/profile after each start of training.",
        choices=("wandb", "profile"),
        free=True,
    )
    average: int = setting(
        "Last checkpoints averaged for translation (section 6.1).", least=1, free=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_every % self.save_every:
            raise InputError(
                f"training.eval_every is {self.eval_every}; it must be a multiple of "
                f"training.save_every={self.save_every}, since only what is saved is "
                "evaluated"
            )
        if self.average > self.keep:
            raise InputError(
                f"training.average is {self.average}, and training.keep={self.keep} "
                "checkpoints are kept; raise training.keep"
            )


@dataclass(frozen=True, kw_only=True)
class MeshConfig(Section, name="mesh"):
    """How devices are used; the sizes multiply to their number, -1 is the rest."""

    data: int = setting(
        "Devices that split the batch; each updates its share of the parameters.",
        least=-1,
        free=True,
    )
    fsdp: int = setting(
        "Devices that split batch, parameters and optimiser state.", least=-1, free=True
    )
    tensor: int = setting(
        "Devices that split heads, feed-forward and vocabulary.", least=-1, free=True
    )


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Section, name="decoding"):
    """The width and the penalty of a search (section 6.1)."""

    beam_size: int = setting(
        "Beam width; 1 is greedy. Of samples: their number.",
        least=1,
        most=256,
        free=True,
    )
    alpha: float = setting(
        "Exponent of the length penalty.", least=0, most=10, free=True
    )


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(SearchConfig):
    """How sentences are translated (section 6.1)."""

    extra_length: int = setting(
        "Most tokens of a translation beyond those of its source.",
        least=0,
        most=MOST_LENGTH,
        free=True,
    )
    batch_tokens: int = setting(
        "Source tokens decoded at a time, padding included.", least=1, free=True
    )


@dataclass(frozen=True)
class Config:
    """A whole config; `model` is the section of an architecture."""

    data: DataConfig
    batches: BatchesConfig
    model: Any
    optimizer: OptimizerConfig
    training: TrainingConfig
    mesh: MeshConfig
    decoding: DecodingConfig

    def __post_init__(self) -> None:
        """Raise InputError for batches or a vocabulary that the model cannot use."""
        if self.model.tied_embeddings == "all" and not self.data.shared_vocabulary:
            raise InputError(
                "model.tied_embeddings is all and data.shared_vocabulary False, where "
                "an id is another piece in each language; set model.tied_embeddings="
                "target"
            )
        if self.batches.layout == "packed" and not self.model.packs:
            raise InputError(
                "this model cannot keep the sentence pairs of a packed row apart; set "
                "batches.layout=buckets"
            )

    def require_rows(self) -> None:
        """Raise InputError for packed rows that no microbatch or no model can hold."""
        is_packed = self.batches.layout == "packed"
        length = self.batches.row_length * is_packed
        tokens = self.training.tokens_per_microbatch
        most_rows(tokens, max(length, 1), self.batches.row_multiple)
        self.require_row(length)

    def require_row(self, length: int) -> None:
        """Raise InputError for a row of so many tokens that the model cannot hold."""
        longest = self.model.longest
        if longest is not None and length > longest:
            raise InputError(
                f"max_positions={longest} of the model does not hold a row of {length} "
                "tokens; raise it, or lower batches.row_length or data.max_length"
            )

    def require_scores(self) -> None:
        """Raise InputError if no validation text has the score `training.best_by`."""
        names = [*self.data.dev_texts]
        texts = [*names, "mean"] if len(names) > 1 else []
        known = [*BEST_BY, *(f"{name}/{key}" for name in texts for key in BEST_BY)]
        if self.training.best_by not in known:
            raise InputError(
                f"training.best_by is {self.training.best_by!r}; use one of "
                f"{', '.join(known)}"
            )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The values by section and key, as `parse_config` takes them."""
        return dataclasses.asdict(self)

    def changes(self, before: "Config") -> Iterator[tuple[str, Any, Any]]:
        """Yield name, old and new value of each key that is not free and differs."""
        for part, section in vars(self).items():
            fixed = dict(_named_values(part, getattr(before, part).fixed()))
            for name, new in _named_values(part, section.fixed()):
                if (old := fixed.get(name)) != new:
                    yield name, old, new


def _named_values(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield PREFIX.KEY and the value of each key, also of those of a dict."""
    for key, value in values.items():
        name = f"{prefix}.{key}"
        if isinstance(value, dict):
            yield from _named_values(name, value)
        else:
            yield name, value
