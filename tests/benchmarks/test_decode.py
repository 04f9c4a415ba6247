"""The decoding benchmark: which types CTranslate2 takes on which device."""

import ctranslate2
import jax
import pytest

from benchmarks.decode import quantized


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
