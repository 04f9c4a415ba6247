"""Parameters that updates change, and those that stay as they are.

The frozen leaves of a tree are None. JAX treats None as an empty subtree, so they have
no gradients, and the optimiser keeps nothing for them.
"""

from functools import partial

import jax
from flax import linen as nn

from jaxformer.models.sequence_model import LikeParameters, Parameters
from jaxformer.system.errors import InputError

# The name of a parameter from its path, such as "encoder/norm/scale".
name_of = partial(jax.tree_util.keystr, simple=True, separator="/")


def trainable(params: LikeParameters, freeze: tuple[str, ...]) -> LikeParameters:
    """Return the parameters that updates change, with None for the others.

    Frozen ones are those whose name is in `freeze` or begins with one of its parts.
    Raises InputError for a name that no parameter has, and if nothing is left.
    """
    is_leaf = {"is_leaf": lambda leaf: isinstance(leaf, nn.meta.AxisMetadata)}
    names = [name_of(path) for path, _ in jax.tree.leaves_with_path(params, **is_leaf)]

    def begins(name: str, part: str) -> bool:
        return f"{name}/".startswith(f"{part.rstrip('/')}/")

    for part in freeze:
        if not any(begins(name, part) for name in names):
            tops = dict.fromkeys(name.partition("/")[0] for name in names)
            raise InputError(
                f"training.freeze names {part!r}, which is no parameter; the names "
                f"begin with {', '.join(tops)}"
            )
    is_frozen = {name: any(begins(name, part) for part in freeze) for name in names}
    if all(is_frozen.values()):
        raise InputError("training.freeze leaves no parameter to train")
    return jax.tree.map_with_path(
        lambda path, leaf: None if is_frozen[name_of(path)] else leaf, params, **is_leaf
    )


def merged(changed: Parameters, params: Parameters) -> Parameters:
    """Return `params` with the leaves of `changed` that are not None."""
    return jax.tree.map(
        lambda new, old: old if new is None else new,
        changed,
        params,
        is_leaf=lambda leaf: leaf is None,
    )
