"""When a search changes its shape."""

from jaxformer.decoding.shapes import (
    MOVED_AFTER,
    REPAID_AFTER,
    SHRINK_AFTER,
    ProgramShape,
    Shapes,
)

LARGE, SMALL = ProgramShape(64, 32, 64), ProgramShape(16, 16, 16)


RECENT, LONG_AGO = (0, 0, 0), (SHRINK_AFTER,) * 3
MANY = REPAID_AFTER * LARGE.slots  # waiting tasks


def test_a_smaller_shape_is_compiled_only_for_many_steps():
    shapes = Shapes(25_000, 1)
    assert shapes.fitted(LARGE, SMALL, RECENT, MANY) == LARGE
    assert shapes.fitted(LARGE, SMALL, LONG_AGO, MANY) == SMALL
    assert shapes.fitted(SMALL, LARGE, RECENT, MANY) == LARGE


def test_a_smaller_shape_is_compiled_only_if_enough_tasks_wait_for_what_it_saves():
    shapes, half, quarter = (
        Shapes(25_000, 1),
        ProgramShape(64, 16, 32),
        ProgramShape(64, 8, 16),
    )
    assert shapes.fitted(LARGE, half, LONG_AGO, MANY - 1) == LARGE
    assert shapes.fitted(LARGE, quarter, LONG_AGO, MANY // 3) == LARGE
    assert shapes.fitted(LARGE, quarter, LONG_AGO, MANY // 3 + 1) == quarter
    assert shapes.fitted(LARGE, half, LONG_AGO, MANY) == half
    shapes.fitted(half, LARGE, RECENT, 0)
    assert shapes.fitted(LARGE, half, LONG_AGO, 0) == half  # it is compiled


def test_a_ring_that_grew_for_one_sentence_returns_to_the_shape_before():
    shapes, begun, grown = (
        Shapes(25_000, 1),
        ProgramShape(64, 32, 32),
        ProgramShape(64, 32, 64),
    )
    needed = ProgramShape(64, 16, 32)
    few = 2 * MOVED_AFTER * grown.slots  # `grown` is 1.5 times as large as `begun`
    assert shapes.fitted(begun, grown, RECENT, 0) == grown
    assert shapes.fitted(grown, needed, LONG_AGO, few - 1) == grown
    assert shapes.fitted(grown, needed, RECENT, few) == grown
    assert shapes.fitted(grown, needed, LONG_AGO, few) == begun


def test_each_size_has_an_age_of_its_own():
    """The last sentences do not get a program of few slots."""
    shapes, ages = Shapes(25_000, 1), (1, SHRINK_AFTER, SHRINK_AFTER)
    assert shapes.fitted(LARGE, SMALL, ages, MANY) == (64, 16, 16)


def test_sizes_that_are_soon_due_shrink_together():
    shapes, ages = Shapes(25_000, 1), (1, SHRINK_AFTER // 2, SHRINK_AFTER)
    assert shapes.fitted(LARGE, SMALL, ages, MANY) == (64, 16, 16)


def test_a_size_shrinks_only_if_half_of_it_is_enough():
    shapes, less = Shapes(25_000, 1), ProgramShape(64, 24, 32)
    assert shapes.fitted(LARGE, less, LONG_AGO, 2 * MANY) == (64, 32, 32)


def test_a_ring_at_least_doubles():
    shapes = Shapes(25_000, 1)
    assert shapes.fitted(SMALL, SMALL._replace(ring=24), RECENT, MANY) == (16, 16, 32)
    assert shapes.fitted(SMALL, SMALL._replace(ring=64), RECENT, MANY) == (16, 16, 64)


def test_a_shape_that_was_used_is_used_again_if_it_is_near():
    shapes, grown = Shapes(25_000, 1), ProgramShape(16, 16, 48)
    shapes.fitted(grown, grown, RECENT, MANY)
    assert shapes.fitted(SMALL, SMALL._replace(ring=32), RECENT, MANY) == grown
    assert shapes.fitted(SMALL, SMALL._replace(ring=24), RECENT, MANY) == (16, 16, 32)


def test_while_one_size_grows_the_others_may_shrink():
    shapes, old, new = (
        Shapes(25_000, 1),
        ProgramShape(16, 16, 64),
        ProgramShape(64, 16, 16),
    )
    assert shapes.fitted(old, new, RECENT, MANY) == new


def test_longer_sources_leave_fewer_slots_at_once():
    shapes = Shapes(64 * 32, 1)
    longer, too_many = ProgramShape(8, 128, 128), ProgramShape(64, 128, 128)
    shapes.fitted(too_many, too_many, RECENT, MANY)
    assert shapes.fitted(LARGE, longer, RECENT, MANY) == longer


def test_limited_shapes_shrink_when_any_size_has_long_been_too_large():
    shapes = Shapes(25_000, 1)
    for shape in shapes.limit(source=64, output=64, slots=64):
        shapes.add(shape)
    small, *_, large = shapes.all
    assert shapes.fitted(large, small, RECENT, MANY) == large
    assert shapes.fitted(large, small, (0, 0, SHRINK_AFTER), MANY) == small
