"""The architectures that a config may name; their models are imported when made."""

import dataclasses
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from jaxformer.config.settings import Section
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.hybrid.config import HybridConfig
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.system.errors import InputError

if TYPE_CHECKING:
    from jaxformer.models.sequence_model import Model

# The config section and the model of each `model.architecture`.
ARCHITECTURES = {
    "transformer": (TransformerConfig, "transformer.model:TransformerModel"),
    "recurrent": (RecurrentConfig, "recurrent.model:RecurrentModel"),
    "convolutional": (ConvolutionalConfig, "convolutional.model:ConvolutionalModel"),
    "hybrid": (HybridConfig, "hybrid.model:HybridModel"),
}


def config_type(architecture: object) -> type[Section]:
    """Return the config section of an architecture. Raises InputError if unknown."""
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        names = " or ".join(map(repr, ARCHITECTURES))
        raise InputError(f"model.architecture is {architecture!r}; use {names}")
    return ARCHITECTURES[architecture][0]


def require_own_keys(given: Mapping[str, object]) -> None:
    """Raise InputError if a section `model` has a key of another architecture."""
    keys_of = {
        name: {field.name for field in dataclasses.fields(config)}
        for name, (config, _) in ARCHITECTURES.items()
    }
    for key in given:
        owners = [name for name, known in keys_of.items() if key in known]
        if owners and given["architecture"] not in owners:
            raise InputError(
                f"model.{key} is a key of the architecture {' or '.join(owners)}, and "
                f"model.architecture is {given['architecture']}; use a config of one "
                "architecture"
            )


def make_model(
    config: Section,
    *,
    vocab_size: int,
    rematerialise: bool,
    source_vocab_size: int | None = None,
    activation_dtype: str | None = None,
) -> "Model":
    """Make the model of a config section for `vocab_size` target ids.

    Sources have as many ids, or `source_vocab_size` ids of their own. `rematerialise`
    trades time for memory: the backward pass computes layers again. Programs for other
    devices than this process's need an `activation_dtype`, the config's `dtype`.
    """
    model = resolve_name(f"jaxformer.models.{ARCHITECTURES[config.architecture][1]}")
    return model(config, vocab_size, rematerialise, source_vocab_size, activation_dtype)
