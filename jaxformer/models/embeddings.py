"""Section 3.4: the matrices that embed ids and make logits, and which of them are one.

The parameter `embedding` embeds targets. It also embeds sources and makes the logits,
unless they have their own: `source_embedding` and `output_embedding`.
"""

from typing import NamedTuple

import jax
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float32

from jaxformer.models.arrays import Ids, Table, Vectors
from jaxformer.models.kernels.elementwise import look_up

NAMES = ("embedding", "source_embedding", "output_embedding")


class Tables(NamedTuple):
    """The matrices by their use; those that are tied are the same array.

    Each use takes the table that the one before returns, as `look_up` says.
    """

    source: Float32[Array, "V_source D"]
    target: Table
    output: Table

    def look_up_source(self, ids: Ids, dtype: DTypeLike) -> tuple[Vectors, "Tables"]:
        """Look up source ids; return also the tables for the uses after this one."""
        return self._look_up(self.source, ids, dtype)

    def look_up_target(self, ids: Ids, dtype: DTypeLike) -> tuple[Vectors, Table]:
        """Look up target ids; return also the output matrix."""
        rows, tables = self._look_up(self.target, ids, dtype)
        return rows, tables.output

    def _look_up(
        self, table: Table, ids: Ids, dtype: DTypeLike
    ) -> tuple[Vectors, "Tables"]:
        with jax.named_scope("embedding"):
            rows, used = look_up(table, ids, dtype)
        return rows, Tables(*(used if each is table else each for each in self))


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
