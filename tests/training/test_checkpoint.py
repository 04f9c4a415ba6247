"""Checkpoints are restored bit for bit onto any devices; failures are one sentence."""

import logging
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxformer.errors import InputError
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.step import TrainState, fresh_state
from tests.training.setups import assert_same, mesh_of, optimizer_of

OPTIMIZER, _ = optimizer_of(clip_norm=1.0)


def make_state(fill: int, *, width: int = 4) -> TrainState:
    rng = np.random.default_rng(fill)
    params = {
        "embedding": jnp.asarray(rng.normal(size=(16, width)), jnp.float32),
        "encoder": {"layer_0": {"bias": jnp.full((width,), fill, jnp.float32)}},
    }
    return fresh_state(params, OPTIMIZER, seed=fill, ema=False)


def abstract(state, sharding=None):
    """Shapes and shardings of a state; `sharding` is a function of the leaf."""
    one = SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding(leaf) if sharding else one
        ),
        state,
    )


ABSTRACT = abstract(make_state(1))


def save_all(directory, bleu_by_step, *, keep=9, scores=None):
    """Save every step and then score it, as training does; returns all scores."""
    scores = {} if scores is None else scores
    with Checkpoints(directory, keep=keep, scores=scores) as checkpoints:
        for step, bleu in bleu_by_step.items():
            checkpoints.save(step, make_state(step))
            if bleu is not None:
                scores[step] = bleu
    return scores


def reader_of(directory, scores=None):
    return Checkpoints(directory, keep=None, scores=scores or {})


def truncate(directory, *, to=0.5, at_least=0):
    """Truncate files of so many bytes as a crash of the machine would."""
    for file in directory.rglob("*"):
        if file.is_file() and file.stat().st_size >= at_least:
            data = file.read_bytes()
            file.write_bytes(data[: int(len(data) * to)])


# --- restoring ----------------------------------------------------------------------


def test_what_eight_devices_saved_is_read_onto_one_and_onto_another_mesh(tmp_path):
    """The state is donated after `save` and overwritten."""

    def spread(sizes, *axes):
        return lambda leaf: NamedSharding(
            mesh_of(sizes), PartitionSpec(*axes) if leaf.ndim == 2 else PartitionSpec()
        )

    overwrite = jax.jit(
        lambda state: jax.tree.map(lambda x: x * 0 + 9, state), donate_argnums=0
    )
    state = jax.tree.map(np.array, make_state(5))
    placed = jax.device_put(state, jax.tree.map(spread((8, 1, 1), "data"), state))
    assert len(placed.params["embedding"].sharding.device_set) == 8
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(5, placed)
        jax.block_until_ready(overwrite(placed))
        for wanted in (ABSTRACT, abstract(state, spread((1, 2, 4), "tensor", "fsdp"))):
            restored, step = checkpoints.restore_latest(wanted)
            assert step == 5
            assert_same(restored, state)
            for got, leaf in zip(
                *map(jax.tree.leaves, (restored, wanted)), strict=True
            ):
                assert got.sharding == leaf.sharding


def test_parameters_alone_are_restored_as_numpy(tmp_path):
    state = make_state(2)._replace(ema={"embedding": jnp.ones((16, 4))})
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(2, state)
    reader = reader_of(tmp_path)
    newest = reader.restore_parameters(None)
    assert isinstance(newest["embedding"], np.ndarray)
    assert_same(newest, state.params)
    assert_same(reader.restore_parameters(2, field="ema"), state.ema)


def test_average_is_the_mean_of_the_last_readable_checkpoints(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    save_all(tmp_path, dict.fromkeys((10, 20, 30, 40, 60)))
    truncate(tmp_path / "40")
    reader = reader_of(tmp_path)

    def bias(count):
        return reader.average(count)["encoder"]["layer_0"]["bias"]

    np.testing.assert_array_equal(bias(3), np.full(4, (20 + 30 + 60) / 3, np.float32))
    assert bias(3).dtype == np.float32
    assert_same(reader.average(1), make_state(60).params)
    assert bias(100)[0] == 30.0
    assert "averaged 4 checkpoints of the 100 asked for" in caplog.messages[-1]
    assert (tmp_path / "40").exists()


# --- keeping ------------------------------------------------------------------------


def test_the_last_and_the_best_are_kept(tmp_path):
    bleu_by_step = {1: 10.0, 2: 30.0, 3: None, 4: 20.0, 5: None, 6: 5.0}
    scores = {7: 99.0}  # of a checkpoint that was removed
    assert reader_of(tmp_path, scores).best_step() is None
    save_all(tmp_path, bleu_by_step, keep=2, scores=scores)
    reader = reader_of(tmp_path, scores)
    assert reader.steps() == [2, 5, 6]
    assert (reader.best_step(), reader.latest_step()) == (2, 6)


def test_the_best_of_an_earlier_run_survives_a_resumed_one(tmp_path):
    scores = save_all(tmp_path, {1: 30.0, 2: 3.0}, keep=1)
    save_all(tmp_path, {3: 4.0, 4: None}, keep=1, scores=scores)
    assert reader_of(tmp_path).steps() == [1, 4]
    save_all(tmp_path, {5: 30.0}, keep=1, scores=scores)  # equal scores: the later one
    assert reader_of(tmp_path, scores).best_step() == 5
    save_all(tmp_path, {6: None}, keep=1, scores=scores)
    assert reader_of(tmp_path).steps() == [5, 6]


def test_a_lower_number_to_keep_removes_nothing_before_the_next_save(tmp_path):
    """The newest checkpoint may turn out to be damaged."""
    save_all(tmp_path, dict.fromkeys((1, 2, 3)))
    truncate(tmp_path / "3")
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT)[1] == 2
        assert checkpoints.steps() == [1, 2]
        checkpoints.save(4, make_state(4))
    assert reader_of(tmp_path).steps() == [4]


def test_checkpoints_after_a_step_are_dropped_damaged_ones_too(tmp_path):
    scores = save_all(tmp_path, {10: 5.0, 20: None, 30: 50.0})
    truncate(tmp_path / "30")
    with Checkpoints(tmp_path, keep=3, scores=scores) as checkpoints:
        assert checkpoints.restore_latest(ABSTRACT)[1] == 20
        checkpoints.drop_after(10)
        assert (checkpoints.steps(), checkpoints.best_step()) == ([10], 10)
        for step in (20, 30):
            checkpoints.save(step, make_state(step + 1))
        checkpoints.drop_after(30)
    reader = reader_of(tmp_path)
    assert reader.steps() == [10, 20, 30]
    for step, fill in ((10, 10), (20, 21), (30, 31)):
        assert_same(reader.restore_parameters(step), make_state(fill).params)


# --- damage --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [{}, {"to": 0}, {"at_least": 1000}])
def test_a_damaged_newest_checkpoint_is_named_skipped_and_replaced(
    tmp_path, caplog, damage
):
    """All files, or only the large ones, which hold the arrays."""
    scores = save_all(tmp_path, {1: 20.0, 2: 10.0, 3: 15.0}, keep=2)
    truncate(tmp_path / "3", **damage)
    with pytest.raises(InputError, match="3 is damaged"):
        reader_of(tmp_path).restore_parameters(3)
    with Checkpoints(tmp_path, keep=2, scores=scores) as checkpoints:
        restored, step = checkpoints.restore_latest(ABSTRACT)
        assert step == 2
        assert_same(restored, make_state(2))
        assert str(tmp_path / "3") in caplog.text
        assert (checkpoints.steps(), checkpoints.best_step()) == ([1, 2], 1)
        assert (tmp_path / "3").exists()
        checkpoints.save(3, make_state(33))
    reader = reader_of(tmp_path)
    assert reader.steps() == [1, 2, 3]
    assert_same(reader.restore_parameters(None), make_state(33).params)


def test_before_a_step_the_newest_readable_of_the_older_ones_is_restored(tmp_path):
    save_all(tmp_path, dict.fromkeys((10, 20, 30)))
    truncate(tmp_path / "20")
    reader = reader_of(tmp_path)
    assert reader.restore_latest(ABSTRACT)[1] == 30
    assert_same(reader.restore_latest(ABSTRACT, before=30), (make_state(10), 10))
    assert reader.restore_latest(ABSTRACT, before=10) is None


@pytest.mark.parametrize("before", [30, np.inf])
def test_only_damaged_checkpoints_do_not_mean_a_new_run(tmp_path, before):
    save_all(tmp_path, dict.fromkeys((10, 20, 30)))
    for step in ("10", "20", "30"):
        truncate(tmp_path / step)
    checkpoints = Checkpoints(tmp_path, keep=2, scores={})
    for _ in range(2):
        with pytest.raises(InputError, match="none of the checkpoints"):
            checkpoints.restore_latest(ABSTRACT, before=before)


def test_an_incomplete_checkpoint_of_a_killed_run_is_ignored_and_removed(tmp_path):
    save_all(tmp_path, {1: None, 2: None})
    unfinished = tmp_path / "3.orbax-checkpoint-tmp"
    (tmp_path / "2").rename(unfinished)
    assert reader_of(tmp_path).steps() == [1]
    with Checkpoints(tmp_path, keep=2, scores={}) as checkpoints:
        assert checkpoints.latest_step() == 1
        checkpoints.save(3, make_state(3))
    assert not unfinished.exists()
    assert reader_of(tmp_path).steps() == [1, 3]


# --- what is refused -----------------------------------------------------------------


def test_without_checkpoints_there_is_nothing_to_resume_or_read(tmp_path):
    reader = reader_of(tmp_path / "nothing")
    assert (reader.latest_step(), reader.best_step()) == (None, None)
    assert reader.restore_latest(ABSTRACT) is None
    for read in (lambda: reader.restore_parameters(None), lambda: reader.average(1)):
        with pytest.raises(InputError, match="no checkpoint in"):
            read()
    assert not (tmp_path / "nothing").exists()


def test_a_missing_step_and_a_missing_field_are_refused(tmp_path):
    save_all(tmp_path, {1: None, 2: None})
    with pytest.raises(InputError, match=r"there are steps 1, 2"):
        reader_of(tmp_path).restore_parameters(3)
    with pytest.raises(InputError, match="no ema"):
        reader_of(tmp_path).restore_parameters(1, field="ema")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda params: make_state(1, width=8).params, r"embedding is \(16, 4\) .*, 8"),
        (
            lambda params: {**params, "b": params["embedding"]},
            "b is absent in .* the c",
        ),
        (lambda params: {"encoder": params["encoder"]}, "absent in the config"),
    ],
)
def test_another_tree_or_shape_is_refused_by_name_and_is_no_damage(
    tmp_path, change, message
):
    save_all(tmp_path, {1: None})
    checkpoints = Checkpoints(tmp_path, keep=1, scores={})
    state = make_state(1)
    other = abstract(state._replace(params=change(state.params)))
    with pytest.raises(
        InputError, match=rf"does not fit this config: params/.*{message}"
    ):
        checkpoints.restore_latest(other)
    assert checkpoints.steps() == [1]


def test_a_save_that_cannot_be_written_is_one_sentence_and_harms_nothing(
    tmp_path, capfd
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {"params": {"w": jax.random.normal(jax.random.key(0), (1000, 100))}}
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.wait()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            checkpoints.save(2, large)
            with pytest.raises(InputError, match=r"File too large.*from step 1$"):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpoints.steps() == [1]
    assert_same(reader_of(tmp_path).restore_parameters(None), make_state(1).params)
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be used: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1, scores={})
