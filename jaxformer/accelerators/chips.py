"""The chips of `chips.toml`, and the names of topologies."""

import math
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from jaxformer.system.errors import InputError


class Chip(NamedTuple):
    """A chip and its links, by its maker. Rates are bytes a second out of one chip."""

    title: str
    peak: float  # bfloat16 operations a second, without sparsity
    memory: float  # bytes
    memory_rate: float
    link_rate: float  # within a group: all links of the chip, one direction
    group: int  # chips that these links join: a pod, or a box
    source: str
    network_rate: float | None = None  # between groups: the chip's part
    clock: float | None = None  # Hz of the compiler's estimated cycles; None: has none
    dimensions: int = 0  # of a TPU's topology: 2 or 3
    cores: int = 1  # devices of a chip, as the compiler counts them
    target: Mapping[str, float] | None = None  # of a GPU: the rest of `target_config`

    @property
    def is_tpu(self) -> bool:
        return self.dimensions > 0

    @property
    def target_config(self) -> str:
        """The text of a GPU's target configuration."""
        figures = {"rate": self.memory_rate, "memory": self.memory, "title": self.title}
        return _DATA["target_config"]["text"] % {**self.target, **figures}


_DATA = tomllib.loads(files(__package__).joinpath("chips.toml").read_text("utf-8"))
CHIPS = {
    name: Chip(**values, target=_DATA["targets"].get(name))
    for name, values in _DATA["chips"].items()
}
KNOWN = (
    "one chip is v5e:1x1, v5p:1x1x1, v6e:1x1, a100, h100 or h200; several are such as "
    "v5e:2x4, v6e:4x4, v4:2x2x1, v5p:2x2x4 (even sizes, the third from 1) or h200:8"
)


class Topology(NamedTuple):
    """A number of chips of one kind."""

    name: str  # such as "v5e:2x4" or "h200:8"
    chip: Chip
    shape: tuple[int, ...]  # of a TPU's slice; of GPUs their number

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """The devices that the compiler sees."""
        return self.chips * self.chip.cores

    @property
    def platform(self) -> str:
        return "tpu" if self.chip.is_tpu else "cuda"


def parse_topology(name: str) -> Topology:
    """Read a name such as "v5e:2x4", "h200:8", or "h100" for one.

    Raises InputError, which says what works, for any other name.
    """
    kind, _, sizes = name.partition(":")
    chip = CHIPS.get(kind)
    if chip is not None and re.fullmatch(r"([1-9]\d*x)*[1-9]\d*|", sizes):
        shape = tuple(map(int, sizes.split("x"))) if sizes else (1,)
        if chip.is_tpu:
            is_one = shape == (1,) * chip.dimensions and chip.cores == 1
            is_even = not any(size % 2 for size in shape[:2])
            if len(shape) == chip.dimensions and (is_one or is_even):
                return Topology(name, chip, shape)
        elif len(shape) == 1:
            return Topology(name, chip, shape)
    raise InputError(f"there is no topology {name!r}; {KNOWN}")
