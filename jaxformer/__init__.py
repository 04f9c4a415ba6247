"""The Transformer of "Attention Is All You Need" in JAX and Flax.

    import jaxformer

    jaxformer.train("demo", "runs/demo")
    translator = jaxformer.Translator("runs/demo")
    translator("The cat sleeps.")  # "Die Katze schläft."

docs/api.md has more examples. Names that are not in `jaxformer.__all__` may change.
"""

import logging
import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("jaxformer needs Python 3.11 to 3.14; see `python3 --version`")

# ruff: noqa: F403, F405
__all__ = [
    "CheckResult", "EvaluateResult", "ExportResult", "InputError", "TrainResult",
    "Translator", "__version__", "attention_view", "check", "evaluate", "export",
    "train",
]  # fmt: skip
__version__ = "0.2.0"

if TYPE_CHECKING:
    from jaxformer.api import *
else:

    def __getattr__(name: str) -> object:
        """Import the public API on first use, so that `import jaxformer` is fast."""
        if name in __all__:
            handlers = logging.root.handlers[:]
            from jaxformer import api

            logging.root.handlers[:] = handlers  # absl, which this imports, adds one
            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
