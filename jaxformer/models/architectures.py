"""The architectures that a config may name."""

from jaxformer.errors import InputError
from jaxformer.models.sequence_model import Model
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.model import TransformerModel
from jaxformer.settings import Section


def config_type(architecture: str) -> type[Section]:
    """Return the config section of an architecture. Raises InputError if unknown."""
    match architecture:
        case "transformer":
            return TransformerConfig
    raise InputError(f"model.architecture is {architecture!r}; use 'transformer'")


def make_model(config: Section, *, vocab_size: int, rematerialise: bool) -> Model:
    """Make the model of a config section, for a vocabulary of that size.

    `rematerialise` trades time for memory: the backward pass computes layers again.
    """
    match config.architecture:
        case "transformer":
            return TransformerModel(config, vocab_size, rematerialise)
    raise InputError(
        f"model.architecture is {config.architecture!r}; use 'transformer'"
    )
