"""The decoding benchmark: which types CTranslate2 takes on which device."""

import jax
import pytest

from benchmarks.decode import quantized


@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        ("cpu", ["float32", "int8", "int16", "bfloat16"]),
        ("gpu", ["float16", "int8_float16"]),
    ],
)
def test_the_peer_takes_the_types_of_the_device(monkeypatch, backend, kinds):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert list(quantized().values()) == kinds
