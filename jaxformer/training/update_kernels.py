"""Parts of an update by the fastest way of a platform."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.models.kernels.fused_attention import cuda_capability
from jaxformer.models.sequence_model import LikeParameters

Tree = TypeVar("Tree")
# cuBLAS computes all products. As it writes them it adds biases, rectifies, and adds
# gradients. XLA's own products would leave this to other kernels. XLA would also merge
# the products of queries, keys and values, and copy their results apart.
FOR_CUDA = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_dot_merger_threshold_mb": 0,
}


def compiler_options(mesh: Mesh) -> dict[str, bool | int]:
    """Return the options of `jax.jit` for an update on the devices of a mesh."""
    return {} if cuda_capability(mesh.devices.flat[0]) is None else FOR_CUDA


def global_norm(tree: LikeParameters) -> jax.Array:
    """Compute the Euclidean norm of all leaves, as one sum for each name and shape.

    XLA makes one kernel or two of each sum. Leaves of other names may be split over
    other dimensions, so devices would exchange them to add them.
    """
    alike = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        alike.setdefault((path[-2:], leaf.shape), []).append(leaf)
    sums = (sum(map(jnp.square, leaves)).sum() for leaves in alike.values())
    return jnp.sqrt(sum(sums))


def scaled(tree: Tree, factor: jax.Array) -> Tree:
    """Multiply all leaves by a scalar.

    XLA for GPUs makes one kernel of the updates of several parameters of a shape if
    they share an array. So the scalar becomes one of two numbers.
    """
    factors = jax.lax.optimization_barrier(jnp.stack([factor, factor]))
    return jax.tree.map(lambda leaf: leaf * factors[0], tree)


def updated_if(
    condition: jax.Array, update: Callable[[Tree], Tree], state: Tree
) -> Tree:
    """Return update(state) where `condition`, bool [], holds, else the state.

    XLA for CPUs would copy all parameters and moments to select between new and old
    ones. In a branch, XLA for GPUs gathers on each device all that it returns, and XLA
    for TPUs copies parameters that are no whole tiles into another layout.
    """

    def selected(state: Tree) -> Tree:
        return jax.tree.map(
            lambda new, old: jnp.where(condition, new, old), update(state), state
        )

    def branched(state: Tree) -> Tree:
        return jax.lax.cond(condition, update, lambda state: state, state)

    return jax.lax.platform_dependent(
        state, cuda=selected, tpu=selected, default=branched
    )
