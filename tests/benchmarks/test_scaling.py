"""The benchmarks of sizes and of stacks: the models that they compare."""

import jax
import numpy as np
import pytest

from benchmarks import scaling
from benchmarks.models import Sizes
from benchmarks.startup import gradients_of, scanned, unrolled


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("d_model", {"d_model", "d_ff", "num_heads"}),  # their ratios stay
        ("num_layers", {"num_layers"}),
        ("vocabulary", {"vocabulary"}),
        ("microbatch", {"rows"}),
    ],
)
def test_one_size_changes_at_a_time(table, changed):
    base, values = vars(scaling.sizes_of()), scaling.TABLES[table]
    found = scaling.variants(table, values).values()
    for value, sizes in zip(values, found, strict=True):
        assert {k for k in base if getattr(sizes, k) != base[k]} in (changed, set())
        assert sizes.model().config.d_k == scaling.HEAD
        is_rows = table == "microbatch"
        assert value == (sizes.batch().target.size if is_rows else vars(sizes)[table])


def test_lengths_have_as_many_tokens_with_and_without_a_window():
    found = scaling.variants("length", (32, 4096))
    assert list(found) == ["32 full", "32 windowed", "4,096 full", "4,096 windowed"]
    assert {sizes.batch().source.size for sizes in found.values()} == {4096}
    windows = [sizes.model().config.attention_window for sizes in found.values()]
    assert windows == [None, scaling.WINDOW] * 2


def test_plots_are_written(tmp_path):
    rates = {"32 full": {"per_second": 3.0}, "1,024 full": {"per_second": 2.0}}
    scaling.plot("length", rates, tmp_path / "new")
    moved = {"2 data": {"parameters": 4, "all-reduce": 8}}
    scaling.plot("devices", moved, tmp_path / "new")
    names = sorted(file.name for file in (tmp_path / "new").iterdir())
    assert names == ["devices.png", "length.png"]


@pytest.mark.slow
def test_a_loop_over_the_layers_gives_the_gradients_of_the_layers():
    """Dropout is on; the layers are different."""
    config = Sizes(num_layers=2, d_model=8, d_ff=8, num_heads=2).model().config
    results = []
    for run in (unrolled, scanned):
        function, arguments = gradients_of(run, config, 2, 4)
        results.append(function(*arguments))
    kernel = arguments[0][0]["feed_forward"]["hidden"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *results
    )
