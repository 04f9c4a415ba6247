"""A corpus of the built-in grammar, which has nothing to warn of."""

import pytest

from jaxformer import grammar
from jaxformer.config.data import NO_NOISE, DataConfig


@pytest.fixture(scope="session")
def config():
    return DataConfig(
        corpus="builtin:grammar", source_language="en", target_language="de",
        directory="", train="1500", dev="50", test="50", vocab_size=400,
        vocab_sentences=10_000, character_coverage=1.0, max_length=60, max_ratio=3.0,
        deduplicate=True, drop=None, max_foreign=0.5, seed=0, corpora=(),
        temperature=None, tag="", target_tag="",
        tokenizer="", columns=(), user_defined_symbols=(), shared_vocabulary=True,
        model_type="bpe", subword_sampling=None, versions=None,
        noise=NO_NOISE, byte_fallback=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def pairs():
    return [(p.source, p.target) for p in grammar.generate("train", 1500, 0)]
