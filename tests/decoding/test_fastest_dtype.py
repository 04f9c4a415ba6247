"""The type of products that is chosen by timing them."""

import timeit
from functools import partial

import jax
import pytest

from jaxformer.decoding import fastest_dtype as module
from jaxformer.decoding.fastest_dtype import best_time, fastest_dtype, product
from tests.models.tiny import model_of


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"float32": 2.0, "bfloat16": 1.0}, "bfloat16"),
        ({"float32": 1.1, "bfloat16": 1.0}, "float32"),  # for so little
        ({"float32": 1.0, "bfloat16": 4.0}, "float32"),
    ],
)
def test_bfloat16_is_chosen_if_it_gains_enough(monkeypatch, seconds, chosen):
    monkeypatch.setattr(module, "product", lambda v, d, dtype: dtype)
    monkeypatch.setattr(module, "best_time", lambda dtype: seconds[dtype])
    assert fastest_dtype(model_of()) == chosen


@pytest.mark.parametrize(
    ("backend", "architecture", "chosen"),
    [("tpu", "transformer", "bfloat16"), ("cpu", "recurrent", "float32")],
)
def test_others_are_not_timed(monkeypatch, backend, architecture, chosen):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(module, "best_time", None)
    model = model_of(architecture=architecture, dtype="bfloat16")
    assert fastest_dtype(model) == chosen


def test_products_are_timed_after_they_are_compiled(monkeypatch):
    """The fastest counts, since others may have waited for another program."""
    now, took = [0.0], iter([9.0, 3.0, 2.0, 5.0, 4.0, 6.0])
    repeat = partial(timeit.repeat, timer=lambda: now[0])
    monkeypatch.setattr(module.timeit, "repeat", repeat)

    def work():
        now[0] += next(took)

    assert best_time(work) == 2.0


def test_the_product_is_that_of_the_logits():
    found = product(40, 16, "bfloat16")()
    assert (found.shape, found.dtype.name) == ((40, module.ROWS), "float32")
    assert (found == 16).all()
