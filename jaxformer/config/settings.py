"""Settings: dataclass fields with a meaning, a type and bounds that are checked.

Used by the sections of a config (`jaxformer.config`, `jaxformer.models`) and by the
options of a translation (`jaxformer.decoding.options`).
"""

import dataclasses
import json
import math
import operator
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jaxformer.config.replaced import SEE_KEYS, require_current
from jaxformer.system.errors import InputError, did_you_mean


def setting(
    meaning: str,
    *,
    default: object = dataclasses.MISSING,
    choices: Sequence[str] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    free: bool = False,
    earlier: object = dataclasses.MISSING,
) -> Any:
    """Declare a key: what it means, with its unit, and the values it may have.

    Numbers are at `least` or `above` one bound, at `most` or `below` the other, and
    numbers of int32 (seeds: uint32) or float32; texts are of `choices`. The value of
    a `free` key may change when a run is resumed. `earlier` is what versions without
    the key did.
    """
    metadata = {
        "meaning": meaning, "choices": tuple(choices), "free": free,
        "least": least, "above": above, "most": most, "below": below,
        "earlier": earlier,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def tied_embeddings() -> dataclasses.Field:
    """Declare the config key that all architectures share."""
    return setting(
        "Which of the source embedding, the target embedding and the output matrix are "
        "one matrix: all (section 3.4), target (the target embedding and the output "
        "matrix; Press and Wolf 2017) or none.",
        choices=("all", "target", "none"),
    )


class Section:
    """Base of the sections; refuses a value of a wrong type or out of bounds."""

    # Of the section `model`:
    packs = True  # whether rows may hold several sentence pairs
    halves = False  # whether mesh.fsdp must divide half of d_model
    longest: int | None = None  # most tokens of a sequence; None: no limit
    tied_embeddings = "all"  # as the key says
    # Keys of one side alone, and their values in a model without this side.
    of_side: ClassVar[Mapping[str, Mapping[str, object]]]

    def __init_subclass__(cls, name: str | None = None) -> None:
        cls.section = name or cls.section

    def __post_init__(self) -> None:
        """Raise InputError that names the first key with a value it cannot have."""
        for field in dataclasses.fields(self):
            name = f"{self.section}.{field.name}"
            value = check_type(name, getattr(self, field.name), kind_of(field))
            check_bounds(name, value, field.metadata)
            object.__setattr__(self, field.name, value)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Section":
        """Make a section of values by key; missing keys that may be None are None.

        Raises InputError that names what is wrong.
        """
        fields = dataclasses.fields(cls)
        given = {**{f.name: None for f in fields if kind_of(f)[1]}, **given}
        require_names("key", f"{cls.section}.", given, [each.name for each in fields])
        return cls(**given)

    @classmethod
    def keys(cls, given: Mapping[str, Any]) -> dict[str, dataclasses.Field]:
        """Return the keys of a section with some values; PARENT.KEY is one of a dict.

        Raises InputError if the values of a dict do not say which keys it has.
        """
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def recorded(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Complete the values of a record by those that earlier versions lack."""
        values = {f.name: f.metadata["earlier"] for f in dataclasses.fields(cls)}
        added = {k: v for k, v in values.items() if v is not dataclasses.MISSING}
        return {**added, **given}

    def fixed(self) -> dict[str, Any]:
        """The values of the keys that are not free."""
        keys = [f.name for f in dataclasses.fields(self) if not f.metadata["free"]]
        return {key: getattr(self, key) for key in keys}


def kind_of(field: dataclasses.Field) -> tuple[type, bool]:
    """The type of a key, and whether None is a value of it."""
    if isinstance(field.type, types.UnionType):
        return typing.get_args(field.type)[0], True
    return field.type, False


_LISTS = {tuple[str, ...]: str, tuple[dict, ...]: dict}  # and the type of their items
_NAMES = {
    int: "a whole number", float: "a number", bool: "True or False", str: "text",
    tuple[str, ...]: "a list of texts", tuple[dict, ...]: "a list of dicts",
    dict: "a dict",
}  # fmt: skip
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_BOUNDS = {
    "least": ("at least", operator.ge), "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    # float32 rounds larger numbers to the bound, 1.
    "below": ("below", lambda value, bound: value < bound - 2**-25),
}  # fmt: skip
_LARGEST = {int: 2**31 - 1, float: 3.4e38}  # of int32 and float32
SEED = {"least": 0, "most": 2**32 - 1}  # the bounds of uint32
MOST_LENGTH = 2**16  # tokens of a sequence; attention squares them
_SMALLEST = 2.0**-126  # of float32; devices may take smaller numbers for 0


def _describe(kind: tuple[type, bool]) -> str:
    return _NAMES[kind[0]] + (" or None" if kind[1] else "")


def read_value(name: str, text: str, kind: tuple[type, bool]) -> object:
    """Read the text of a flag as a value. Raises InputError that names the type."""
    type_, may_be_none = kind
    if text == "None" and may_be_none:
        return None
    if type_ == tuple[str, ...] and not text.startswith("["):
        return tuple(filter(None, map(str.strip, text.split(","))))
    if type_ in _LISTS or type_ is dict:
        type_ = json.loads
    try:
        return _BOOLEANS[text.lower()] if type_ is bool else type_(text)
    except (ValueError, KeyError, RecursionError):
        raise InputError(f"--{name}={text} is not {_describe(kind)}") from None


def check_type(name: str, value: Any, kind: tuple[type, bool]) -> object:
    """Return `value`, an int as a float where the key is one. Raises InputError."""
    type_, may_be_none = kind
    if value is None and may_be_none:
        return None
    if type_ is float and type(value) is int:
        return float(value) if abs(value) < 2**1000 else math.inf
    is_list = type_ in _LISTS and type(value) in (list, tuple)
    if is_list and all(type(item) is _LISTS[type_] for item in value):
        try:
            return tuple(json.loads(json.dumps(value)))  # as a record of it is read
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} is no JSON: {error}") from None
    if type(value) is not type_:
        raise InputError(f"{name} is {value!r}; it must be {_describe(kind)}")
    return value


def check_bounds(name: str, value: Any, rule: Mapping[str, Any]) -> None:
    """Raise InputError unless `value` is within the bounds of a key's `rule`."""
    if value is None:
        return
    choices = rule.get("choices")
    for each in value if isinstance(value, tuple) else [value]:
        if choices and each not in choices:
            raise InputError(f"{name} is {each!r}; use one of {', '.join(choices)}")
    bounds = {key: rule[key] for key in _BOUNDS if rule.get(key) is not None}
    largest = _LARGEST.get(type(value))
    if largest is not None and value > largest:
        bounds.setdefault("most", largest)
    is_float = type(value) is float
    number = 0.0 if is_float and abs(value) < _SMALLEST else value
    if not all(_BOUNDS[key][1](number, bound) for key, bound in bounds.items()):
        words = " and ".join(f"{_BOUNDS[key][0]} {at}" for key, at in bounds.items())
        unit = " in float32" if is_float else ""
        raise InputError(f"{name} is {value}; it must be {words}{unit}")


def require_names(
    what: str, prefix: str, given: Mapping[str, Any], known: Sequence[str]
) -> None:
    """Raise InputError for an unknown name, or a known one that is missing."""
    for name in given:
        if name not in known:
            require_current(f"{prefix}{name}")
            names = [prefix + each for each in known]
            hint = did_you_mean(f"{prefix}{name}", names, SEE_KEYS)
            raise InputError(f"the config has an unknown {what} {prefix}{name}{hint}")
    for name in known:
        if name not in given:
            raise InputError(f"the config lacks the {what} {prefix}{name}")
