"""The protocol of a sequence-to-sequence model, whatever its architecture.

A model holds no parameters. Its methods are pure functions of (parameters, arrays), for
use inside `jax.jit`. Shapes use the alphabet of `jaxformer.models.arrays`.
"""

import hashlib
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32, Int32, PyTree

from jaxformer.batch import Batch
from jaxformer.config.settings import Section
from jaxformer.models.arrays import (
    AnyArray,
    Flags,
    Ids,
    Integer,
    RandomKey,
    Sources,
    Table,
)
from jaxformer.models.masks import segment_lengths
from jaxformer.system.errors import InputError

Parameters = PyTree[Float[Array, "..."]]  # nested dicts, float32; NumPy if just read
LikeParameters = PyTree  # with the same structure: shapes, shardings, flags
Weights = Memory = Cache = PyTree[Array]  # of a decoder's own

# Tokens in a block of the logits in which a search finds the largest, nearest to 32
# first. All these sizes are about as fast on a CPU; one that divides the vocabulary
# saves a copy of the logits. A TPU keeps 8 rows of the logits together.
_BLOCKS = sorted(range(16, 65), key=lambda size: (size % 8 > 0, abs(size - 32)))


class Features(NamedTuple):
    """The factors of the logits, hidden x table^T + bias."""

    hidden: Float[Array, "B T D"]
    table: Float32[Array, "V D"]
    bias: Float32[Array, " V"] | None
    log_choice: Float32[Array, "B T"] | None = None  # log P of what the model drew


class Encoded(NamedTuple):
    """What an encoder hands to a decoder, which uses what it needs."""

    states: Sources
    embedded: Sources  # embeddings of the source, positions included
    summary: Sources  # its sum over a sentence begins a recurrent decoder


def mean_summary(states: Sources, segments: Ids) -> Sources:
    """Divide states by the length of their sentence: a `summary` that is their mean.

    Nematus begins so (Sennrich et al. 2017).
    """
    lengths = jnp.maximum(segment_lengths(segments), 1)[..., None]
    return states / lengths.astype(states.dtype)


class AttentionMaps(NamedTuple):
    """Attention weights; each row is a query.

    A row sums to one. N is the number of layers, 0 where the model has no such
    attention. Row t of `decoder` and `cross` is the position that predicts target
    token t.
    """

    encoder: Float32[Array, "N_encoder B H S S"]
    decoder: Float32[Array, "N_decoder B H T T"]
    cross: Float32[Array, "N_cross B H T S"]


def require_positions(longest: int | None, what: str, length: int) -> None:
    """Raise InputError for a side of more pieces than the positions of a model."""
    if longest is not None and length > longest:
        raise InputError(
            f"{what} has {length:,} pieces on a side, end included, more than "
            f"max_positions={longest} of the model; shorten it"
        )


class Newest(NamedTuple):
    """The newest token of W hypotheses of each of B sentences, and their past.

    All sentences share one clock; they may begin at different steps. `ancestors` is a
    ring buffer: slot t mod L holds the index of the hypothesis that made step t in the
    past of each hypothesis. A sentence of age n has n tokens, so its newest n + 1 slots
    count, this step's included.
    """

    tokens: Int32[Array, "B W"]  # BOS at age 0
    ages: Int32[Array, " B"]
    clock: Integer  # the number of this step
    ancestors: Int32[Array, "B W L"]


@runtime_checkable
class Decoder(Protocol):
    """Scores one token at a time.

    Cache entries are not re-ordered; the parent of a hypothesis is
    `ancestors[..., (clock - 1) % L]`.
    """

    def weights(self, params: Parameters) -> Weights:
        """Rearrange parameters for decoding; once per checkpoint."""

    def encode(self, weights: Weights, source: Ids) -> Memory:
        """Encode source ids, one sentence a row; leaves are [B, ...]."""

    def resize_memory(self, memory: Memory, *, length: int) -> Memory:
        """Cut or pad the sources to `length` tokens; only padding is cut."""

    def empty_cache(self, *, batch: int, width: int, length: int) -> Cache:
        """Allocate the cache of B x W hypotheses and L = `length` steps."""

    def resize_cache(
        self, cache: Cache, clock: Integer, *, width: int, length: int
    ) -> Cache:
        """Keep the newest L = `length` steps before `clock`, which becomes `length`."""

    def step(
        self, weights: Weights, memory: Memory, cache: Cache, newest: Newest
    ) -> tuple[Float32[Array, "V B W"], Cache]:
        """Compute the logits of the tokens that may follow the newest."""


@runtime_checkable
class Model(Protocol):
    """A sequence-to-sequence model."""

    config: Section  # `model`, a dataclass
    d_model: int  # width of the output table
    vocab_size: int  # of targets
    dtype: str  # of the factors of products
    wide_results: bool  # products in bfloat16 have results in float32 on CPUs
    longest: int | None  # most tokens of a sequence; None: no limit
    samples: bool  # in training, so that `Features` have a `log_choice`
    decoder: Decoder

    def init(self, key: RandomKey) -> Parameters:
        """Draw parameters, boxed with the logical names of their axes."""

    def features(self, params: Parameters, batch: Batch, key: RandomKey) -> Features:
        """Run on whole targets in training; `key` is for dropout."""

    def logits(self, params: Parameters, batch: Batch) -> Float32[Array, "B T V"]:
        """Score every next target token without dropout."""

    def attention(self, params: Parameters, batch: Batch) -> AttentionMaps | None:
        """Compute attention weights; None without attention to the source."""

    def watch(self, params: Parameters, batch: Batch, key: RandomKey) -> Flags:
        """Check that the output of each layer is finite in training.

        Names are in forward order; the paths of a layer's parameters begin with them.
        """

    def flops(self, rows: int, source: int, target: int) -> int:
        """Count floating-point operations of matrix products, forward and backward.

        Padding counts like tokens; rematerialisation does not count.
        """

    def activations(self, rows: int, source: int, target: int) -> int:
        """Estimate how many numbers the backward pass keeps, to compare shapes."""


def block_size(vocabulary: int) -> int:
    """Return the number of tokens in a block of logits; the last may be partial."""
    return next((n for n in _BLOCKS if vocabulary % n == 0), _BLOCKS[0])


def product_blocks(vocabulary: int) -> int:
    """Count the blocks that are an axis of the product of a step's logits; 1: none are.

    XLA for TPUs then finds the largest logit of each block during the product. Devices
    of the axis `tensor` split the vocabulary; each must have whole blocks.
    """
    size = block_size(vocabulary)
    devices = jax.sharding.get_abstract_mesh().shape.get("tensor", 1)
    is_whole = size % 8 == 0 and vocabulary % (size * devices) == 0
    return vocabulary // size if is_whole else 1


def batch_logits(features: Features) -> Float32[Array, "B T V"]:
    """Score every next target token."""
    hidden, table, bias, _ = features
    logits = jnp.einsum(
        "btd,vd->btv", hidden, table.astype(hidden.dtype),
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    if bias is not None:
        logits += bias[None, None]
    return nn.with_logical_constraint(logits, ("batch", "length", "vocab"))


def step_logits(
    table: Table, x: Float[Array, "D R"], bias: Float32[Array, " V"] | None = None
) -> Float32[Array, "V R"]:
    """Compute logits in the `product_blocks`; the factors have the table's dtype."""
    x = x.astype(table.dtype)
    blocks = table.reshape(product_blocks(len(table)), -1, len(x))
    logits = jnp.einsum("nvd,dr->nvr", blocks, x, preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias.reshape(*logits.shape[:2], 1)
    return logits.reshape(len(table), -1)


def parameter_count(params: PyTree) -> int:
    """Count the numbers in a pytree of arrays or abstract arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def parameter_hash(params: Parameters) -> str:
    """Hash the names and the values of parameters."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(params):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


def pad(x: AnyArray, before: int, after: int, *, axis: int) -> AnyArray:
    """Add zeros at both ends of an axis; negative widths cut."""
    widths = [(0, 0, 0)] * x.ndim
    widths[axis] = (before, after, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), widths)


def resize_ring(ring: AnyArray, clock: Integer, *, axis: int, length: int) -> AnyArray:
    """Rotate `ring` so that its newest entry, slot clock - 1, is last; cut or pad it.

    A shorter ring loses its oldest entries; a longer one begins with zeros.
    """
    oldest_first = jnp.roll(ring, -clock, axis=axis)
    return pad(oldest_first, length - ring.shape[axis], 0, axis=axis)
