"""The decoding benchmark: its tokeniser, and the types that CTranslate2 takes."""

import ctranslate2
import jax
import pytest

from benchmarks.decode import quantized
from benchmarks.peers.decoding import Numbers
from jaxformer.tokens import AnyTokenizer


def test_its_tokeniser_has_all_that_one_has():
    members = *AnyTokenizer.__annotations__, *vars(AnyTokenizer)
    missing = {name for name in members if not hasattr(Numbers(9), name)}
    assert {name for name in missing if not name.startswith("_")} == set()


@pytest.mark.parametrize(
    ("backend", "supported", "kinds"),
    [
        ("cpu", {"int8", "float32", "int8_float32"}, ["float32", "int8"]),
        ("gpu", {"int8_float16", "float16", "int8"}, ["float16"]),
    ],
)
def test_the_peer_takes_the_types_of_the_device(monkeypatch, backend, supported, kinds):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(
        ctranslate2, "get_supported_compute_types", lambda _: {*supported}
    )
    assert list(quantized().values()) == kinds
