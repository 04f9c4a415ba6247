"""How a run is opened for translation."""

import jax
import pytest

from jaxformer.runs import open as open_module
from jaxformer.runs.open import number_of_searches
from tests.training.setups import mesh_of


@pytest.mark.parametrize(
    ("devices", "cores", "several", "count"),
    [(1, 1, False, 1), (1, 2, False, 2), (1, 64, False, 2), (2, 64, False, 1),
     (1, 64, True, 1)],
)  # fmt: skip
def test_one_cpu_runs_two_searches(monkeypatch, devices, cores, several, count):
    monkeypatch.setattr(open_module, "usable_cores", lambda: cores)
    monkeypatch.setattr(jax, "process_count", lambda: 1 + several)
    assert number_of_searches(mesh_of((devices, 1, 1))) == count
