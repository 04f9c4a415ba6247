"""The flags, as a table, and what every mode receives of them.

A flag that only some modes read says so in its meaning. Flags of the same group arrive
together: those of no group as a field of `Options`, the others in a dict that has only
what was given.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.processes import Cluster

MODES = ("prepare", "check", "train", "evaluate", "translate", "score")


class Flag(NamedTuple):
    """One flag: its type is that of `kind`, its bounds or choices are absl's."""

    name: str
    kind: type  # str, int, float or bool
    meaning: str
    default: Any = None
    least: float | None = None
    choices: tuple[str, ...] | None = None


FLAGS: dict[str | None, tuple[Flag, ...]] = {
    None: (
        Flag("workdir", str, "The run's folder: made by training."),
        Flag("source", str, "evaluate, score: file of source sentences."),
        Flag("reference", str, "evaluate, score: file of translations."),
        Flag("split", str, "evaluate, score: split of the run's data, without "
             "--source.", default="test"),
        Flag("checkpoint", str, "Parameters to use: a step, latest, best, or average:N "
             "of the last N; by default the average that the config asks for."),
    ),
    "decoding": (  # values of that section of the config
        Flag("beam_size", int, "Beam width, 1 is greedy.", least=1),
        Flag("batch_tokens", int, "Source tokens decoded at a time, padding included.",
             least=1),
        Flag("alpha", float, "Exponent of the length penalty ((5 + n) / 6)^alpha of n "
             "output pieces."),
    ),
    "cluster": (  # jax.distributed finds it by itself on Cloud TPU, Slurm and Open MPI
        Flag("coordinator_address", str, "Several processes: HOST:PORT of process 0."),
        Flag("num_processes", int, "How many processes take part; 1: this one alone.",
             least=1),
        Flag("process_id", int, "Which of them this is, from 0.", least=0),
        Flag("join_timeout", int, "Seconds to wait at the start until all are there.",
             default=300, least=1),
        Flag("peer_timeout", int, "Seconds after which a silent process counts as "
             "lost.", default=100, least=10),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags; `config` is the resolved config file or None."""

    mode: str
    config: dict | None
    workdir: Path | None
    source: str | None
    reference: str | None
    split: str
    checkpoint: str | None
    decoding: dict  # flags that override the config section `decoding`
    cluster: Cluster  # which processes take part
