"""bfloat16 on CPUs: the factors of products with weights, and nothing else.

Processors multiply bfloat16 numbers two (AVX512-BF16) to six times (AMX) as fast as
float32 and add them up in float32. XLA uses that if the result is float32 and the left
factor is stored by rows. For results in bfloat16, or a transposed left factor, it casts
the factors to float32. All other operations take as long in either type, so on CPUs the
activations of a Transformer stay float32.
"""

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float


def default_activation_dtype(dtype: str) -> str:
    """Return the type of activations for a model of `dtype` on this process's devices.

    Programs for other devices take it from the config.
    """
    return "float32" if jax.default_backend() == "cpu" else dtype


def transposed(x: Float[Array, "*L M"]) -> Float[Array, "M rows"]:
    """Copy x for a product that sums over rows.

    Without the pinned layout XLA would turn the transposition into a layout of x, for
    which it has no fast product. It cannot split a pinned copy over the mesh axis
    `tensor`.
    """
    columns = x.reshape(-1, x.shape[-1]).T
    if jax.sharding.get_abstract_mesh().shape.get("tensor", 1) > 1:
        return columns
    return with_layout_constraint(columns, Layout((0, 1)))
