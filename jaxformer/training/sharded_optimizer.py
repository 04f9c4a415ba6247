"""ZeRO (Rajbhandari et al. 2020): devices that split a batch also split the state.

Each device stores and updates its share of parameters and moments. For the gradient of
its rows it gathers the whole parameters; the gradients of all devices are then summed,
and each device receives its share. The mesh axis `tensor` is left to XLA.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from jaxformer.batch import Batch
from jaxformer.models import embeddings
from jaxformer.models.sequence_model import LikeParameters, Parameters
from jaxformer.models.shards import BATCH_AXES
from jaxformer.training.loss import LossSums

IN_MODEL_DTYPE = ("kernel", *embeddings.NAMES)  # which the model casts before use
SumsAndGradients = tuple[LossSums, Parameters]
Differentiate = Callable[[Parameters, Batch, tuple], SumsAndGradients]


def over_shards(
    differentiate: Differentiate,
    shardings: LikeParameters,
    dtype: str,
    trainable: Callable[[LikeParameters], LikeParameters],
) -> Differentiate:
    """Return `differentiate(params, batch, rest)` for arrays split by `shardings`.

    `differentiate` returns sums over its rows, and gradients; `rest` is not split.
    `trainable` keeps the leaves of a tree that have gradients. Matrices are gathered in
    `dtype`, in which layers use them; embeddings are float32 again for their gradients,
    which all tokens add to. Gradients are summed in float32.
    """
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
    splits = jax.tree.map(lambda spec: _part(spec, BATCH_AXES), specs)
    wholes = jax.tree.map(lambda spec: _part(spec, ("tensor",)), specs)
    rows = PartitionSpec(BATCH_AXES)
    # check_vma=False: otherwise JAX sums the gradients of replicated parameters.
    exchange = functools.partial(jax.shard_map, check_vma=False)

    def gather(params: Parameters) -> Parameters:
        def gather_leaf(path: tuple, x: jax.Array, split: PartitionSpec) -> jax.Array:
            name = path[-1].key
            whole = _gather(x.astype(dtype) if name in IN_MODEL_DTYPE else x, split)
            return whole.astype(x.dtype) if name in embeddings.NAMES else whole

        return jax.tree.map_with_path(gather_leaf, params, splits)

    def of_rows(params: Parameters, batch: Batch, rest: tuple) -> SumsAndGradients:
        rules = [rule for rule in nn.get_logical_axis_rules() if rule[0] != "batch"]
        with nn.logical_axis_rules(rules):
            sums, grads = differentiate(params, batch, rest)
        return jax.lax.psum(sums, BATCH_AXES), jax.tree.map(lambda x: x[None], grads)

    def scatter(grads: Parameters) -> Parameters:
        return jax.tree.map(
            lambda x, split: _scatter(x[0], split), grads, trainable(splits)
        )

    def of_batch(params: Parameters, batch: Batch, rest: tuple) -> SumsAndGradients:
        with jax.named_scope("exchange"):
            whole = exchange(gather, in_specs=(specs,), out_specs=wholes)(params)
        # XLA splits the work of `tensor`, and could not split exchanges by it as well.
        sums, grads = exchange(
            of_rows,
            in_specs=(PartitionSpec(), rows, PartitionSpec()),
            out_specs=(PartitionSpec(), rows),
            axis_names=set(BATCH_AXES),
        )(whole, batch, rest)
        parts = jax.tree.map(
            lambda whole: PartitionSpec(BATCH_AXES, *whole), trainable(wholes)
        )
        summed = exchange(scatter, in_specs=(parts,), out_specs=trainable(specs))
        with jax.named_scope("exchange"):
            return sums, summed(grads)

    return of_batch


def _part(spec: PartitionSpec, axes: tuple[str, ...]) -> PartitionSpec:
    """Keep some axes of a spec."""
    parts = (part if isinstance(part, tuple) else (part,) for part in spec)
    kept = (tuple(axis for axis in part if axis in axes) for part in parts)
    return PartitionSpec(*(each or None for each in kept))


def _gather(x: jax.Array, split: PartitionSpec) -> jax.Array:
    """Concatenate the shares of all devices along the one dimension that is split."""
    for dimension, axes in enumerate(split):
        if axes:
            x = jnp.moveaxis(x, dimension, 0)
            whole = jax.lax.all_gather(_as_matrix(x), axes, tiled=True)
            return jnp.moveaxis(whole.reshape(-1, *x.shape[1:]), 0, dimension)
    return x


def _scatter(x: jax.Array, split: PartitionSpec) -> jax.Array:
    """Sum x over all devices; each keeps its share along the split dimension."""
    x = x.astype(jnp.float32)
    for dimension, axes in enumerate(split):
        if axes:
            x = jnp.moveaxis(x, dimension, 0)
            share = jax.lax.psum_scatter(_as_matrix(x), axes, tiled=True)
            rest = [axis for axis in BATCH_AXES if axis not in axes]
            rest = tuple(axis for axis in rest if jax.lax.axis_size(axis) > 1)
            share = jax.lax.psum(share, rest) if rest else share
            return jnp.moveaxis(share.reshape(-1, *x.shape[1:]), 0, dimension)
    return jax.lax.psum(x, BATCH_AXES)


def _as_matrix(x: jax.Array) -> jax.Array:
    """Merge dimensions into two, about equal, of which the first has major strides.

    A TPU stores the last two dimensions in tiles of 8 x 128. [512, 8, 64], the kernel
    of 8 heads, would take and send twice its bytes. It scatters only along a major
    dimension, and otherwise sums whole arrays on every device.
    """
    if x.ndim == 1:
        return x
    cuts = (math.prod(x.shape[n:]) for n in range(1, x.ndim))
    columns = min(cuts, key=lambda columns: abs(math.log(columns**2 / x.size)))
    return with_layout_constraint(x.reshape(-1, columns), Layout((0, 1)))
