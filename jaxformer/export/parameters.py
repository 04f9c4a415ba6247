"""Parameters by name, checks and text templates for all export formats."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from string import Template
from typing import Any

import jax
import numpy as np

from jaxformer.errors import InputError


def flat(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy nested parameters to float32 arrays by path, such as "encoder/norm/bias"."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(path): np.array(leaf, np.float32) for path, leaf in leaves}


def nested(named: Mapping[str, Any]) -> dict[str, Any]:
    """Nest parameters by the paths in their names; the inverse of `flat`."""
    params: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split("/")
        parent = functools.reduce(lambda d, key: d.setdefault(key, {}), path, params)
        parent[last] = value
    return params


def require_exportable(config: Any) -> None:
    """Raise InputError for a model of another architecture: no format holds it."""
    if config.architecture != "transformer":
        raise InputError(
            f"model.architecture={config.architecture} cannot be exported; every "
            "format holds only the architecture transformer"
        )


def require_fields(program: str, config: Any, allowed: dict[str, tuple]) -> None:
    """Raise InputError unless each named field of `config` has an allowed value."""
    for field, values in allowed.items():
        value = getattr(config, field)
        if value not in values:
            raise InputError(
                f"{program} cannot hold a model with model.{field}={value}, only with "
                f"{' or '.join(map(str, values))}; export to another format"
            )


def require_none_left(program: str, left: Mapping[str, Any]) -> None:
    """Raise InputError if a parameter is left that the format cannot hold."""
    if left:
        raise InputError(
            f"{program} cannot hold this model's parameter {min(left)}; export to "
            "another format"
        )


@contextmanager
def optional_package(name: str) -> Iterator[None]:
    """Turn the ImportError of a package of the extra `export` into an InputError."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"the package {name} is needed ({error}); run: pip install "
            "'jaxformer[export]'"
        ) from error


def template(name: str) -> Template:
    """Read a file of `templates/`, with $names to substitute."""
    file = resources.files(__package__).joinpath("templates", name)
    return Template(file.read_text(encoding="utf-8"))
