"""Check the annotations of `jaxformer.models` and of the search in each call.

`tests/conftest.py` installs `check` with jaxtyping's import hook. Compiled programs are
the same: a function inside `jax.jit` is called, and checked, when it is traced.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import jaxtyped

MODULES = ["jaxformer.models", "jaxformer.decoding.search"]
CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float
_hints_of = functools.cache(get_type_hints)


def check(signature: Callable) -> Callable:
    """Make a function that raises if its arguments do not fit a signature.

    jaxtyping calls it with the arguments of each call, and with the result. NumPy
    arrays are checked as the arrays that JAX makes of them. The fields of named tuples,
    also in lists and tuples, are checked with letters of their own: two tuples may have
    different lengths. Values of dicts are not checked.
    """
    checked = beartype(signature, conf=CONF)

    def check_all(args: tuple, kwargs: dict) -> None:
        _check_fields([*args, *kwargs.values()])
        checked(*args, **kwargs)

    def call(*args: object, **kwargs: object) -> None:
        try:
            check_all(args, kwargs)
        except BeartypeCallHintViolation:
            check_all(*jax.tree.map(_as_jax, (args, kwargs), is_leaf=is_dataclass))

    return call


def _as_jax(leaf: object) -> object:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _check_fields(values: Iterable) -> None:
    for value in values:
        if hasattr(value, "_fields"):
            with jaxtyped("context"):
                for name, hint in _hints_of(type(value)).items():
                    die_if_unbearable(getattr(value, name), hint, conf=CONF)
        if isinstance(value, list | tuple):
            _check_fields(value)
