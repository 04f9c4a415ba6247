"""When a search changes its shape."""

from jaxformer.decoding.shapes import SHRINK_AFTER, Shape, Shapes

LARGE, SMALL = Shape(64, 32, 64), Shape(16, 16, 16)


NEW, OLD = (0, 0, 0), (SHRINK_AFTER,) * 3


def test_a_smaller_shape_is_compiled_only_for_many_steps():
    shapes = Shapes(25_000, 1)
    assert shapes.fitted(LARGE, SMALL, NEW) == LARGE
    assert shapes.fitted(LARGE, SMALL, OLD) == SMALL
    assert shapes.fitted(LARGE, SMALL, NEW) == SMALL  # it is compiled
    assert shapes.fitted(SMALL, LARGE, NEW) == LARGE


def test_each_size_has_an_age_of_its_own():
    """The last sentences do not get a program of few slots."""
    shapes, ages = Shapes(25_000, 1), (1, SHRINK_AFTER, SHRINK_AFTER)
    assert shapes.fitted(LARGE, SMALL, ages) == (64, 16, 16)


def test_nothing_is_compiled_for_the_sake_of_a_shape_that_stays_large():
    """More slots and a shorter ring: either shape is new."""
    shapes, old, new = Shapes(25_000, 1), Shape(16, 16, 64), Shape(64, 16, 16)
    assert shapes.fitted(old, new, NEW) == new


def test_longer_sources_leave_fewer_slots_at_once():
    shapes = Shapes(64 * 32, 1)
    longer = Shape(8, 128, 128)
    assert shapes.fitted(LARGE, longer, NEW) == longer
