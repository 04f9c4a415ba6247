"""The architectures that a config may name."""

from jaxformer.errors import InputError
from jaxformer.models.convolutional.config import ConvolutionalConfig
from jaxformer.models.convolutional.model import ConvolutionalModel
from jaxformer.models.recurrent.config import RecurrentConfig
from jaxformer.models.recurrent.model import RecurrentModel
from jaxformer.models.sequence_model import Model
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.model import TransformerModel
from jaxformer.settings import Section

# The config section and the model of each `model.architecture`.
ARCHITECTURES = {
    "transformer": (TransformerConfig, TransformerModel),
    "recurrent": (RecurrentConfig, RecurrentModel),
    "convolutional": (ConvolutionalConfig, ConvolutionalModel),
}


def config_type(architecture: str) -> type[Section]:
    """Return the config section of an architecture. Raises InputError if unknown."""
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        names = " or ".join(map(repr, ARCHITECTURES))
        raise InputError(f"model.architecture is {architecture!r}; use {names}")
    return ARCHITECTURES[architecture][0]


def make_model(config: Section, *, vocab_size: int, rematerialise: bool) -> Model:
    """Make the model of a config section.

    `rematerialise` trades time for memory: the backward pass computes layers again.
    """
    return ARCHITECTURES[config.architecture][1](config, vocab_size, rematerialise)
