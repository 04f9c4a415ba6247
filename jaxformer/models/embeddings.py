"""Section 3.4: the matrices that embed ids and make logits, and which of them are one.

The parameter `embedding` embeds targets. It also embeds sources and makes the logits,
unless they have their own: `source_embedding` and `output_embedding`.
"""

from typing import NamedTuple

import jax
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int

from jaxformer.models.arrays import Sources, Table, Targets
from jaxformer.models.kernels.elementwise import look_up

NAMES = ("embedding", "source_embedding", "output_embedding")


class Tables(NamedTuple):
    """The matrices by their use; those that are tied are the same array."""

    source: Float32[Array, "V_source D"]
    target: Table
    output: Table

    def look_up(
        self, source: Int[Array, "B S"], target: Int[Array, "B T"], dtype: DTypeLike
    ) -> tuple[Sources, Targets, Table]:
        """Look up ids of both sides; return also the output matrix.

        Each use takes the table that the one before returns, as `look_up` says.
        """
        with jax.named_scope("embedding"):
            source_rows, table = look_up(self.source, source, dtype)
            table = table if self.target is self.source else self.target
            target_rows, table = look_up(table, target, dtype)
        table = table if self.output is self.target else self.output
        return source_rows, target_rows, table


def make_tables(module: nn.Module, init: nn.initializers.Initializer) -> Tables:
    """Add the parameters to a network in its `setup`, drawn by `init`.

    The network has the fields of `jaxformer.models.linen_model.LinenModel`.
    """
    config, size = module.config, module.vocab_size
    init = nn.with_logical_partitioning(init, ("vocab", "embed"))

    def table(name: str, ids: int) -> Float32[Array, "{ids} D"]:
        return module.param(name, init, (ids, config.d_model))

    source = target = output = table("embedding", size)
    if config.tied_embeddings != "all":
        source = table("source_embedding", module.source_vocab_size or size)
    if config.tied_embeddings == "none":
        output = table("output_embedding", size)
    return Tables(source, target, output)
