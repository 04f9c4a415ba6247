"""Which matrices a model has, for each way of tying them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import Batch
from jaxformer.models.embeddings import NAMES
from jaxformer.models.sequence_model import parameter_count
from jaxformer.tokens import EOS
from tests.models.tiny import VALUES, model_of, params_of, shapes_of

SOURCE, TARGET, D = 30, 24, 16  # ids of each side, d_model
MATRICES = {"all": 0, "target": SOURCE * D, "none": (SOURCE + TARGET) * D}  # added ones
with_architecture = pytest.mark.parametrize("architecture", sorted(VALUES))


@with_architecture
@pytest.mark.parametrize("tied", MATRICES)
def test_each_tie_has_its_matrices(architecture, tied):
    """Besides, parameters and their names are those of the tied model."""
    own = None if tied == "all" else SOURCE
    values = {"architecture": architecture, "tied_embeddings": tied}
    shapes = shapes_of(model_of(TARGET, source_vocab_size=own, **values))
    whole = shapes_of(model_of(TARGET, architecture=architecture))
    assert parameter_count(shapes) == parameter_count(whole) + MATRICES[tied]
    rows = {name: len(shapes[name]) for name in NAMES if name in shapes}
    expected = {"source_embedding": SOURCE, "output_embedding": TARGET}
    count = ["all", "target", "none"].index(tied)
    assert rows == {"embedding": TARGET, **dict([*expected.items()][:count])}
    others = {name: leaf for name, leaf in shapes.items() if name not in NAMES}
    assert others == {name: leaf for name, leaf in whole.items() if name in others}


@with_architecture
def test_equal_matrices_are_the_tied_model(architecture):
    """Logits are equal, and the tied gradient is the sum of the three."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(EOS, TARGET, (3, 5), dtype=np.int32) for _ in "ST"]
    batch = Batch(*ids, *map(np.ones_like, ids))
    models = [
        model_of(TARGET, architecture=architecture, tied_embeddings=tied)
        for tied in ("all", "none")
    ]
    params = params_of(models[0])
    copies = {name: params["embedding"] for name in NAMES}

    def total(model, params):
        logits = model.logits(params, batch)
        return jnp.tanh(logits).sum(), logits

    (tied, logits), (untied, same) = (
        jax.jit(jax.grad(total, argnums=1, has_aux=True), static_argnums=0)(model, each)
        for model, each in zip(models, (params, params | copies), strict=True)
    )
    np.testing.assert_allclose(same, logits, atol=1e-5)
    assert all(np.abs(untied[name]).max() > 1e-3 for name in NAMES)
    summed = sum(untied[name] for name in NAMES)
    np.testing.assert_allclose(tied["embedding"], summed, rtol=1e-4, atol=1e-4)


@with_architecture
def test_the_uses_of_a_tied_matrix_share_one_gradient(architecture):
    """Rows are added to the output's gradient: no array [V, D] is added to another."""
    model = model_of(TARGET, architecture=architecture)
    row = jnp.ones((1, 3), jnp.int32)
    batch = Batch(row, row, row, row)

    def total(params):
        hidden, table, *_ = model.features(params, batch, jax.random.key(0))
        return (hidden @ table.T).sum()

    program = jax.make_jaxpr(jax.grad(total))(params_of(model))
    added = [
        equation.primitive.name
        for equation in program.jaxpr.eqns
        if equation.primitive.name.startswith(("add", "scatter-add"))
        and equation.outvars[0].aval.shape == (TARGET, D)
    ]
    assert added == ["scatter-add"] * 2
