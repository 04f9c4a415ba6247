"""What the command line asks for, as every mode receives it."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.processes import Cluster

MODES = ("prepare", "check", "train", "evaluate", "translate", "score")


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
