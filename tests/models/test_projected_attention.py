"""Linformer's attention against equation 7 of Wang et al. (2020)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxformer.models.projected_attention import ProjectedAttention

MODULE = ProjectedAttention(
    2, 4, 6, jnp.dtype("float32"), True, 1.0, count=3, longest=9
)
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)[:, None, None]


def drawn():
    """Tokens [2, 5, 8], parameters with biases, and a cotangent."""
    draw = np.random.default_rng(0)
    x, cotangent = draw.normal(size=(2, 2, 5, 8)).astype(np.float32)
    params = nn.unbox(jax.jit(MODULE.init)(jax.random.key(0), x, x, MASK))["params"]
    for leaf in params.values():
        if isinstance(leaf, dict):
            leaf["bias"] = jnp.float32(draw.normal(size=leaf["bias"].shape))
    return x, params, cotangent


def by_definition(params, x, numpy=np):
    """One row at a time, without its padding."""
    rows = []
    for row, length in zip(x, (4, 2), strict=True):
        outputs = numpy.zeros((length, 8)) + params["output"]["bias"][None]
        for head in range(2):
            query, key, value = (
                row[:length] @ params[name]["kernel"][:, head]
                + params[name]["bias"][head][None]
                for name in ("query", "key", "value")
            )
            keys = params["key_mixture"][:, :length] @ key
            values = params["value_mixture"][:, :length] @ value
            weights = numpy.exp(query @ keys.T / 2)
            weights = weights / weights.sum(axis=1, keepdims=True)
            outputs = outputs + weights @ values @ params["output"]["kernel"][head]
        rows.append(outputs)
    return numpy.concatenate(rows)  # [4 + 2, D]


def test_outputs_are_those_of_equation_7():
    x, params, _ = drawn()
    assert params["key_mixture"].shape == params["value_mixture"].shape == (3, 9)
    found = jax.jit(MODULE.apply)({"params": params}, x, x, MASK)
    wide = jax.tree.map(np.float64, params)
    expected = by_definition(wide, np.float64(x))
    np.testing.assert_allclose(found[MASK[:, 0, 0]], expected, atol=1e-5)


def test_gradients_are_those_of_equation_7():
    x, params, cotangent = drawn()
    cotangent = cotangent[MASK[:, 0, 0]]

    def ours(params, x):
        return (
            MODULE.apply({"params": params}, x, x, MASK)[MASK[:, 0, 0]] * cotangent
        ).sum()

    def theirs(params, x):
        return (by_definition(params, x, numpy=jnp) * cotangent).sum()

    found, expected = (
        jax.jit(jax.grad(loss, argnums=(0, 1)))(params, x) for loss in (ours, theirs)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected
    )
    assert (found[0]["key_mixture"][:, 4:] == 0).all()  # of positions without tokens
