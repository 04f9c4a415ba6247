"""Linformer's attention against equation 7 of Wang et al. (2020)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    params = nn.unbox(jax.jit(MODULE.init)(jax.random.key(0), x, x, x, MASK))["params"]
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


def test_outputs_and_gradients_are_those_of_equation_7():
    x, params, cotangent = drawn()
    mixtures = np.stack([params["key_mixture"], params["value_mixture"]])
    assert mixtures.shape == (2, 3, 9)
    assert mixtures.std() == pytest.approx(3**-0.5, rel=0.2)  # as in theorem 2
    is_real = MASK[:, 0, 0]
    found = jax.jit(MODULE.apply)({"params": params}, x, x, x, MASK)
    expected = by_definition(jax.tree.map(np.float64, params), np.float64(x))
    np.testing.assert_allclose(found[is_real], expected, atol=1e-5)

    def ours(params, x):
        return MODULE.apply({"params": params}, x, x, x, MASK)[is_real]

    def theirs(params, x):
        return by_definition(params, x, numpy=jnp)

    found, expected = (
        jax.jit(lambda *given, f=function: jax.vjp(f, *given)[1](cotangent[is_real]))(
            params, x
        )
        for function in (ours, theirs)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected
    )
    assert (found[0]["key_mixture"][:, 4:] == 0).all()  # of positions without tokens
