"""The Transformer of "Attention Is All You Need" in JAX and Flax."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxformer.api import Translator, attention_view

__all__ = ["Translator", "attention_view"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is used: `import jaxformer` alone costs nothing."""
    if name in __all__:
        from jaxformer import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
