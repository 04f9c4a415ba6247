"""The type of products that is chosen by timing them."""

import pytest

from jaxformer.decoding import fastest_dtype as module


@pytest.mark.parametrize(
    ("seconds", "chosen", "gain"),
    [
        ({"float32": 2.0, "bfloat16": 1.0}, "bfloat16", 2.0),
        ({"float32": 1.1, "bfloat16": 1.0}, "float32", 1.1),  # for so little
        ({"float32": 1.0, "bfloat16": 4.0}, "float32", 0.25),
    ],
)
def test_the_faster_type_is_chosen_if_it_gains_enough(
    monkeypatch, seconds, chosen, gain
):
    def best_time(work):
        return seconds[str(work.__closure__[0].cell_contents[0].dtype)]

    monkeypatch.setattr(module, "best_time", best_time)
    assert module.fastest_dtype(8, 40) == (chosen, gain)


def test_the_products_are_timed_after_they_are_compiled(monkeypatch):
    """The fastest counts, since others may have waited for another program."""
    now, took = [0.0], iter([9.0, 3.0, 2.0, 5.0, 4.0, 6.0])

    def work():
        now[0] += next(took)

    with monkeypatch.context() as patched:
        patched.setattr(module.time, "perf_counter", lambda: now[0])
        assert module.best_time(work) == 2.0
    chosen, gain = module.fastest_dtype(16, 64)
    assert chosen in ("float32", "bfloat16")
    assert gain > 0
