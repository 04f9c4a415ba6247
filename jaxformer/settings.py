"""Settings: dataclass fields with a meaning, a type and bounds that are checked.

Used by the sections of a config (`jaxformer.config`, `jaxformer.models`) and by the
options of a translation (`jaxformer.decoding.options`).
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jaxformer.errors import InputError


def setting(
    meaning: str,
    *,
    default: Any = dataclasses.MISSING,
    choices: Sequence[str] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    free: bool = False,
) -> Any:
    """Declare a key: what it means, with its unit, and the values it may have.

    Numbers are at `least` or `above` one bound, at `most` or `below` the other; text is
    one of `choices`. The value of a `free` key may change when a run is resumed.
    """
    metadata = {
        "meaning": meaning, "choices": tuple(choices), "free": free,
        "least": least, "above": above, "most": most, "below": below,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


class Section:
    """Base of the sections; refuses a value of a wrong type or out of bounds."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        """Raise InputError that names the first key with a value it cannot have."""
        for field in dataclasses.fields(self):
            name = f"{self.section}.{field.name}"
            value = check_type(name, getattr(self, field.name), kind_of(field))
            check_bounds(name, value, field.metadata)
            object.__setattr__(self, field.name, value)


def kind_of(field: dataclasses.Field) -> tuple[type, bool]:
    """The type of a key, and whether None is a value of it."""
    if isinstance(field.type, types.UnionType):
        return typing.get_args(field.type)[0], True
    return field.type, False


TYPE_NAMES = {
    int: "a whole number", float: "a number", bool: "True or False", str: "text",
}  # fmt: skip


def check_type(name: str, value: Any, kind: tuple[type, bool]) -> Any:
    """Return `value` as its type, an int as a float if that is wanted; or refuse it."""
    wanted, may_be_none = kind
    if value is None and may_be_none:
        return None
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        none = " or None" if may_be_none else ""
        raise InputError(f"{name} is {value!r}; it must be {TYPE_NAMES[wanted]}{none}")
    return value


def check_bounds(name: str, value: Any, rule: Mapping[str, Any]) -> None:
    """Raise InputError unless `value` is within the bounds of a key's `rule`."""
    if value is None:
        return
    choices = rule.get("choices")
    if choices and value not in choices:
        raise InputError(f"{name} is {value!r}; use one of {', '.join(choices)}")
    tests = (
        ("least", "at least", lambda bound: value >= bound),
        ("above", "above", lambda bound: value > bound),
        ("most", "at most", lambda bound: value <= bound),
        ("below", "below", lambda bound: value < bound),
    )
    bounds = [test for test in tests if rule.get(test[0]) is not None]
    is_fine = all(holds(rule[key]) for key, _, holds in bounds)
    if not is_fine or (isinstance(value, float) and not math.isfinite(value)):
        words = " and ".join(f"{word} {rule[key]:g}" for key, word, _ in bounds)
        raise InputError(f"{name} is {value}; it must be {words or 'finite'}")


def require_names(
    what: str, prefix: str, given: Mapping[str, Any], wanted: Sequence[str]
) -> None:
    """Raise InputError for an unknown name, or a wanted one that is missing."""
    for name in given:
        if name not in wanted:
            near = difflib.get_close_matches(name, wanted, n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            raise InputError(f"the config has an unknown {what} {prefix}{name}{hint}")
    for name in wanted:
        if name not in given:
            raise InputError(f"the config lacks the {what} {prefix}{name}")
