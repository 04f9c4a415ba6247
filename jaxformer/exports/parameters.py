"""Parameters by name, checks and text templates for all export formats."""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.config.settings import Section
from jaxformer.system.errors import InputError, NotFiniteError, printable
from jaxformer.tokens import AnyTokenizer


def flat(params: Mapping) -> dict[str, np.ndarray]:
    """Copy nested parameters to float32 arrays by path, such as "encoder/norm/bias".

    Raises NotFiniteError for a number that is not finite.
    """
    named = flatten_dict(params, sep="/").items()
    found = {name: np.array(leaf, np.float32) for name, leaf in named}
    for name, leaf in found.items():
        if not np.isfinite(leaf).all():
            raise NotFiniteError(
                f"the parameter {name} is not finite: it is damaged, or training has "
                "diverged; use another checkpoint"
            )
    return found


nested = partial(unflatten_dict, sep="/")  # the inverse of `flat`


def require_exportable(config: Section) -> None:
    """Raise InputError for a model of another architecture: no format holds it."""
    if config.architecture != "transformer":
        raise InputError(
            f"model.architecture={config.architecture} cannot be exported; every "
            "format holds only the architecture transformer"
        )


# Values of fields that every format can hold.
PLAIN: dict[str, tuple] = {
    "decoder_self_attention": ("attention",),
    "attention_window": (None,),
    "encoder_projected_keys": (None,),
    "activation": ("relu", "swish"),
}


def plain_fields(config: Section) -> dict[str, tuple]:
    """Return PLAIN, and the head size of formats whose heads make up d_model."""
    head_size = Fraction(config.d_model, config.num_heads)
    return PLAIN | dict.fromkeys(("d_k", "d_v"), (head_size,))


def require_fields(program: str, config: Section, allowed: dict[str, tuple]) -> None:
    """Raise InputError unless each named field of `config` has an allowed value."""
    wrong = [
        f"model.{field}={value}, only with {' or '.join(map(str, values))}"
        for field, values in allowed.items()
        if (value := getattr(config, field)) not in values
    ]
    if wrong:
        raise InputError(
            f"{program} cannot hold a model with {'; '.join(wrong)}; export to another "
            "format, or train with these values"
        )


def write_tokenizer(folder: Path, tokenizer: AnyTokenizer) -> dict[str, str]:
    """Write the SentencePiece model, or two; return the names of source and target."""
    files = {"source": "sentencepiece.model", "target": "sentencepiece.model"}
    if tokenizer.source_model != tokenizer.target_model:
        files = {"source": "source.spm", "target": "target.spm"}
    (folder / files["source"]).write_bytes(tokenizer.source_model)
    (folder / files["target"]).write_bytes(tokenizer.target_model)
    return files


def template(name: str) -> str:
    """Read a file of `templates/`."""
    file = resources.files(__package__).joinpath("templates", name)
    return file.read_text(encoding="utf-8")


def in_markdown(text: str) -> str:
    """Escape a user's text for a line, or a cell of a table, of Markdown."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", printable(text))
