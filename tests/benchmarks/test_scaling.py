"""The benchmark of sizes: the models that it compares."""

import pytest

from benchmarks import scaling


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("d_model", {"d_model", "d_ff", "num_heads"}),  # their ratios stay
        ("layers", {"layers"}),
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
    found = scaling.variants("length", (32, 4096)).values()
    assert {sizes.rows * sizes.source for sizes in found} == {4096}
    assert [sizes.attention_window for sizes in found] == [None, scaling.WINDOW] * 2
