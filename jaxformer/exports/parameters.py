"""Parameters by name, checks and text templates for all export formats."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.system.errors import InputError
from jaxformer.tokens import AnyTokenizer


def flat(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy nested parameters to float32 arrays by path, such as "encoder/norm/bias"."""
    named = flatten_dict(params, sep="/").items()
    return {name: np.array(leaf, np.float32) for name, leaf in named}


nested = partial(unflatten_dict, sep="/")  # the inverse of `flat`


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


def write_tokenizer(folder: Path, tokenizer: AnyTokenizer) -> dict[str, str]:
    """Write the SentencePiece model, or two; return the names of source and target."""
    files = {"source": "sentencepiece.model", "target": "sentencepiece.model"}
    if tokenizer.source_model != tokenizer.target_model:
        files = {"source": "source.spm", "target": "target.spm"}
    (folder / files["source"]).write_bytes(tokenizer.source_model)
    (folder / files["target"]).write_bytes(tokenizer.target_model)
    return files


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
