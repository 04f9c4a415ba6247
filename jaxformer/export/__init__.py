"""Models in the formats of other programs, and back. They hold the Transformer only."""

from typing import Any

from jaxformer.errors import InputError


def require_transformer(config: Any) -> None:
    """Raise InputError unless a config section `model` is a Transformer's."""
    if config.architecture != "transformer":
        raise InputError(
            f"model.architecture is {config.architecture!r}; only models with "
            "'transformer' can be exported"
        )
