"""The corpus of tests/text/conftest.py."""

from tests.text.conftest import config, pairs

__all__ = ["config", "pairs"]
