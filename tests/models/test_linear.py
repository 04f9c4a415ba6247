"""Linear maps between named axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.linear import Projection


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
