"""The hyper-parameters of a hybrid model: the config section `model`."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from jaxformer.config.settings import (
    Section,
    kind_of,
    require_names,
    setting,
    tied_embeddings,
)
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.system.errors import InputError

KINDS = TransformerConfig, RecurrentConfig, ConvolutionalConfig
OTHER = {"encoder": "decoder", "decoder": "encoder"}
SHARED = "d_model", "tied_embeddings", "dropout", "dtype"  # keys of both sides
OF_A_SIDE = rf"\bmodel\.(?!{'|'.join(SHARED)})"  # before its keys, in messages
Values = Mapping[str, object]  # by key


@dataclass(frozen=True, kw_only=True)
class HybridConfig(Section, name="model"):
    """An encoder and a decoder, each of another architecture, and what they share."""

    architecture: str = setting("Kind of model.", choices=("hybrid",))
    encoder: dict = setting(  # noqa: RUF009 as in all sections
        "Architecture of the encoder, and its keys; no key that is here or that "
        "concerns a decoder."
    )
    decoder: dict = setting(  # noqa: RUF009 as in all sections
        "Architecture of the decoder, and its keys; no key that is here or that "
        "concerns an encoder."
    )
    d_model: int = setting("Width of both sides.", least=1, most=2**16)
    tied_embeddings: str = tied_embeddings()
    dropout: float = setting(
        "Of both sides, where their architectures have it.",
        least=0, below=1, free=True,
    )  # fmt: skip
    dtype: str = setting(
        "Type of products, as the architectures have it; parameters are float32.",
        choices=("float32", "bfloat16"),
        free=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for side, half in self.sides.items():
            own = {key: getattr(half, key) for key in _keys(type(half), side)}
            object.__setattr__(self, side, own)

    def __hash__(self) -> int:
        return hash(tuple(self.sides.values()))

    @cached_property
    def sides(self) -> dict[str, Section]:
        """The sections of two models, of which one lends its encoder, one its decoder.

        Raises InputError that names what is wrong.
        """
        shared = {key: getattr(self, key) for key in SHARED}
        sections = {}
        for side, other in OTHER.items():
            given = getattr(self, side)
            kind = _kind(side, given)
            own, keys = kind.keys({}), _keys(kind, side)
            given = {**{key: None for key in keys if kind_of(own[key])[1]}, **given}
            require_names("key", f"model.{side}.", given, keys)
            try:
                sections[side] = kind(**given, **shared, **kind.of_side[other])
            except InputError as error:
                text = re.sub(OF_A_SIDE, f"model.{side}.", str(error))
                raise InputError(text) from None
        return sections

    @property
    def packs(self) -> bool:
        return all(half.packs for half in self.sides.values())

    @property
    def halves(self) -> bool:
        return any(half.halves for half in self.sides.values())

    @property
    def longest(self) -> int | None:
        found = [half.longest for half in self.sides.values()]
        return min((each for each in found if each is not None), default=None)

    @property
    def num_heads(self) -> int | None:
        """Common divisor of the heads of both sides, for meshes; None without heads."""
        return self._divisor("num_heads")

    @property
    def d_ff(self) -> int | None:
        """Common divisor of the feed-forward widths of both sides, for meshes."""
        return self._divisor("d_ff")

    def _divisor(self, key: str) -> int | None:
        return (
            math.gcd(*(getattr(half, key, 0) for half in self.sides.values())) or None
        )

    @classmethod
    def keys(cls, given: Values) -> dict[str, dataclasses.Field]:
        found = super().keys(given)
        for side in OTHER:
            kind = _kind(side, given.get(side))
            own = kind.keys({})
            found |= {f"{side}.{key}": own[key] for key in _keys(kind, side)}
        return found

    @classmethod
    def recorded(cls, given: Values) -> dict[str, object]:
        values = super().recorded(given)
        for side in OTHER:
            kind = _kind(side, given[side])
            own = {*given[side], *_keys(kind, side)}
            completed = kind.recorded(given[side]).items()
            values[side] = {key: value for key, value in completed if key in own}
        return values

    def fixed(self) -> dict[str, object]:
        values = super().fixed()
        for side, half in self.sides.items():
            own = half.fixed()
            values[side] = {key: own[key] for key in values[side] if key in own}
        return values


def _kind(side: str, given: object) -> type[Section]:
    """Return the config section of the architecture of a side."""
    choices = {
        kind: kind.keys({})["architecture"].metadata["choices"] for kind in KINDS
    }
    kinds = {name: kind for kind, (name,) in choices.items()}
    name = given.get("architecture") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or name not in kinds:
        names = " or ".join(map(repr, kinds))
        raise InputError(f"model.{side}.architecture is {name!r}; use {names}")
    return kinds[name]


def _keys(kind: type[Section], side: str) -> list[str]:
    """List the keys of an architecture that concern a side and are not SHARED."""
    left_out = {*SHARED, *kind.of_side[OTHER[side]]}
    return [key for key in kind.keys({}) if key not in left_out]
