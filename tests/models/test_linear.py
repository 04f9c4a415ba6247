"""Linear maps: the product laid out for its gradient is a product like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.linear import Projection, multiply


@pytest.mark.parametrize(
    ("of_x", "of_matrix", "factors", "bound"),
    [
        ("float32", "float32", "float32", 1e-6),
        ("float32", "float32", "bfloat16", 1e-6),  # of CPUs: sums in float32
        ("float32", "bfloat16", "bfloat16", 2**-8),  # parameters gathered in bfloat16
        ("bfloat16", "float32", "bfloat16", 2**-8),
    ],
)
def test_the_product_and_its_gradients_are_the_plain_ones(
    of_x, of_matrix, factors, bound
):
    """Of factors rounded to their type; results have the types of what they are of."""
    draw = np.random.default_rng(0)

    def rounded(*shape):
        return jnp.asarray(draw.standard_normal(shape), factors).astype("float32")

    x, matrix, gradient = rounded(3, 5, 4), rounded(4, 6), rounded(3, 5, 6)
    given = x.astype(of_x), matrix.astype(of_matrix)
    y, pull = jax.vjp(lambda *given: multiply(*given, factors), *given)
    found = y, *pull(gradient.astype(of_x))
    expected, pull_plain = jax.vjp(jnp.matmul, x, matrix)
    for ours, theirs, like in zip(
        found, (expected, *pull_plain(gradient)), (given[0], *given), strict=True
    ):
        assert ours.dtype == like.dtype
        ours = np.asarray(ours, np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("shape", "contracted", "equation"),
    [
        ((4, 2, 3), 1, "bld,dhk->blhk"),
        ((2, 3, 4), 2, "blhu,hud->bld"),
        ((4, 6), 1, "bld,df->blf"),
    ],
)
def test_a_projection_is_the_product_that_its_letters_say(shape, contracted, equation):
    axes = ("embed", "heads", "head_size")[: len(shape)]
    projection = Projection(shape, axes, contracted, jnp.dtype("float32"), True, 1.0)
    x = jax.random.normal(jax.random.key(1), (2, 5, *shape[:contracted]))
    boxed = projection.init(jax.random.key(0), x)["params"]
    kernel = boxed["kernel"].unbox()
    bias = jax.random.normal(jax.random.key(2), shape[contracted:])
    found = projection.apply({"params": {"kernel": kernel, "bias": bias}}, x)
    expected = jnp.einsum(equation, x, kernel) + bias[None, None]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_gain_scales_xavier_s_initialisation():
    def kernel(gain):
        axes, dtype = ("embed", "mlp"), jnp.dtype("float32")
        projection = Projection((64, 96), axes, 1, dtype, False, gain)
        boxed = projection.init(jax.random.key(0), jnp.ones((1, 1, 64)))
        return boxed["params"]["kernel"].unbox()

    assert kernel(1.0).std() == pytest.approx(np.sqrt(2 / (64 + 96)), rel=0.03)
    np.testing.assert_allclose(kernel(0.5), 0.5 * kernel(1.0), rtol=1e-6)
