"""The Transformer of "Attention Is All You Need" in JAX and Flax."""

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("jaxformer needs Python 3.11, 3.12 or 3.13; see `python3 --version`")

if TYPE_CHECKING:
    from jaxformer.api import Translator, attention_view

__all__ = ["Translator", "__version__", "attention_view"]
__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """Import the public API on first use, so that `import jaxformer` is fast."""
    if name in ("Translator", "attention_view"):
        from jaxformer import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
