"""Checkpoints come back bit for bit, anywhere, and failures end in one sentence."""

import logging
import resource
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxformer.errors import InputError
from jaxformer.training.checkpoint import Checkpoints


class State(NamedTuple):
    """The kinds of leaves and empty nodes that a real training state has."""

    step: jax.Array
    seed: jax.Array
    params: Any
    opt_state: Any
    ema: Any


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def make_state(fill: int, *, width: int = 4) -> State:
    rng = np.random.default_rng(fill)
    params = {
        "embedding": jnp.asarray(rng.normal(size=(16, width)), jnp.float32),
        "encoder": {"layer_0": {"bias": jnp.full((width,), fill, jnp.float32)}},
    }
    return State(
        jnp.int32(fill), jnp.uint32(7), params, OPTIMIZER.init(params), ema=None
    )


def abstract(state, sharding=None):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
    )


def assert_bit_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save_all(directory, bleu_by_step, *, keep, scores=None):
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


def truncate(directory, *, half: bool):
    """Damage every file of a checkpoint as a crash of the machine would."""
    for file in directory.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            file.write_bytes(data[: len(data) // 2] if half else b"")


def test_a_state_comes_back_bit_for_bit_in_a_new_process_s_manager(tmp_path):
    state = make_state(3)
    with Checkpoints(tmp_path, keep=2, scores={}) as checkpoints:
        checkpoints.save(3, state)
    with Checkpoints(tmp_path, keep=2, scores={}) as checkpoints:
        assert checkpoints.latest_step() == 3
        restored, step = checkpoints.restore_latest(
            abstract(state, SingleDeviceSharding(jax.devices()[0]))
        )
    assert step == 3
    assert isinstance(restored.params["embedding"], jax.Array)
    assert_bit_equal(restored, state)


def test_donating_the_state_after_save_does_not_change_what_is_saved(tmp_path):
    state = make_state(1)
    expected = jax.tree.map(np.array, state)
    overwrite = jax.jit(
        lambda s: jax.tree.map(lambda x: x * 0 + 9, s), donate_argnums=0
    )
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(1, state)
        jax.block_until_ready(overwrite(state))
        checkpoints.wait()
        assert_bit_equal(checkpoints.restore(1, abstract(expected)), expected)


def test_what_eight_devices_saved_is_read_onto_one_and_onto_another_mesh(tmp_path):
    def sharded(shape, *axes):
        mesh = jax.make_mesh(shape, ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
        return lambda leaf: NamedSharding(
            mesh, PartitionSpec(*axes) if leaf.ndim == 2 else PartitionSpec()
        )

    state = make_state(5)
    spread = jax.device_put(state, jax.tree.map(sharded((8, 1), "data"), state))
    assert len(spread.params["embedding"].sharding.device_set) == 8
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(5, spread)
        checkpoints.wait()
        one = SingleDeviceSharding(jax.devices()[0])
        alone = checkpoints.restore(5, abstract(state, one))
        other = jax.tree.map(sharded((2, 4), "fsdp", "data"), state)
        elsewhere = checkpoints.restore(
            5,
            jax.tree.map(
                lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
                state,
                other,
            ),
        )
    assert alone.params["embedding"].sharding == one
    assert elsewhere.params["embedding"].sharding == other.params["embedding"]
    assert_bit_equal(alone, state)
    assert_bit_equal(elsewhere, state)


def test_parameters_alone_come_back_as_numpy_or_where_they_are_asked_for(tmp_path):
    state = make_state(2)._replace(ema={"embedding": jnp.ones((16, 4))})
    one = SingleDeviceSharding(jax.devices()[3])
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(2, state)
    reader = reader_of(tmp_path)
    on_host = reader.restore_parameters(None)
    placed = reader.restore_parameters(2, abstract=abstract(state.params, one))
    ema = reader.restore_parameters(2, field="ema")
    assert isinstance(on_host["embedding"], np.ndarray)
    assert_bit_equal(on_host, state.params)
    assert placed["embedding"].sharding == one
    assert_bit_equal(placed, state.params)
    assert_bit_equal(ema, state.ema)


def test_a_field_that_was_not_kept_is_refused(tmp_path):
    save_all(tmp_path, {1: None}, keep=1)
    reader = reader_of(tmp_path)
    with pytest.raises(InputError, match="no ema"):
        reader.restore_parameters(1, field="ema")


def test_the_last_and_the_best_are_kept(tmp_path):
    bleu_by_step = {1: 10.0, 2: 30.0, 3: None, 4: 20.0, 5: None, 6: 5.0}
    reader = reader_of(tmp_path, save_all(tmp_path, bleu_by_step, keep=2))
    assert reader.steps() == [2, 5, 6]
    assert reader.best_step() == 2
    assert reader.latest_step() == 6


def test_the_best_of_an_earlier_run_survives_a_resumed_one(tmp_path):
    scores = save_all(tmp_path, {1: 30.0, 2: 3.0}, keep=1)
    save_all(tmp_path, {3: 4.0, 4: None}, keep=1, scores=scores)
    assert reader_of(tmp_path).steps() == [1, 4]
    save_all(tmp_path, {5: 30.0}, keep=1, scores=scores)  # equal scores: the later one
    assert reader_of(tmp_path, scores).best_step() == 5
    save_all(tmp_path, {6: None}, keep=1, scores=scores)
    assert reader_of(tmp_path).steps() == [5, 6]


def test_the_best_is_the_best_of_those_there_are_as_scores_become_known(tmp_path):
    scores = {7: 99.0}  # of a checkpoint that is gone
    with Checkpoints(tmp_path, keep=2, scores=scores) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, make_state(step))
        assert checkpoints.best_step() is None
        scores[1] = 20.0
        assert checkpoints.best_step() == 1
        scores[2] = 30.0
        assert checkpoints.best_step() == 2


def test_a_step_saved_twice_by_a_run_is_written_once(tmp_path):
    with Checkpoints(tmp_path, keep=3, scores={1: 12.0}) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.save(1, make_state(2))
        assert checkpoints.steps() == [1]
        assert checkpoints.best_step() == 1
    assert_bit_equal(reader_of(tmp_path).restore_parameters(1), make_state(1).params)


def test_what_was_before_a_step_is_the_newest_readable_of_the_older_ones(tmp_path):
    save_all(tmp_path, {10: None, 20: None, 30: None}, keep=3)
    truncate(tmp_path / "20", half=True)
    reader, wanted = reader_of(tmp_path), abstract(make_state(1))
    restored, step = reader.restore_before(30, wanted)
    assert step == 10
    assert_bit_equal(restored, make_state(10))
    assert reader.restore_before(10, wanted) is None
    assert reader.restore_latest(wanted)[1] == 30  # 20 is damaged, and no more


def test_only_damaged_checkpoints_before_a_step_do_not_mean_a_new_run(tmp_path):
    save_all(tmp_path, {10: None, 20: None, 30: None}, keep=3)
    for step in ("10", "20"):
        truncate(tmp_path / step, half=True)
    with pytest.raises(InputError, match="can be read"):
        reader_of(tmp_path).restore_before(30, abstract(make_state(1)))


def test_a_way_that_is_not_gone_on_leaves_no_checkpoints(tmp_path):
    scores = save_all(tmp_path, {10: 5.0, 20: None, 30: 50.0}, keep=3)
    truncate(tmp_path / "30", half=True)
    wanted = abstract(make_state(1))
    with Checkpoints(tmp_path, keep=3, scores=scores) as checkpoints:
        assert checkpoints.restore_latest(wanted)[1] == 20
        checkpoints.drop_after(10)
        assert checkpoints.steps() == [10]
        assert checkpoints.best_step() == 10
        for step in (20, 30):  # it comes there again, otherwise
            checkpoints.save(step, make_state(step + 1))
        checkpoints.drop_after(30)
    reader = reader_of(tmp_path)
    assert reader.steps() == [10, 20, 30]
    for step, fill in ((10, 10), (20, 21), (30, 31)):
        assert_bit_equal(reader.restore(step, wanted), make_state(fill))


def test_average_is_the_mean_of_the_last_checkpoints(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    save_all(tmp_path, {step: None for step in (10, 20, 30, 60)}, keep=9)
    reader = reader_of(tmp_path)
    mean = reader.average(3)
    bias = mean["encoder"]["layer_0"]["bias"]
    np.testing.assert_array_equal(bias, np.full(4, (20 + 30 + 60) / 3, np.float32))
    assert bias.dtype == np.float32
    assert_bit_equal(reader.average(1), make_state(60).params)
    everything = reader.average(100)
    assert everything["encoder"]["layer_0"]["bias"][0] == 30.0
    assert "averaged 4 checkpoints of the 100 asked for" in caplog.messages[-1]


def test_without_checkpoints_there_is_nothing_to_resume_or_read(tmp_path):
    reader = reader_of(tmp_path / "nothing")
    assert reader.latest_step() is None
    assert reader.best_step() is None
    assert reader.restore_latest(abstract(make_state(1))) is None
    for read in (reader.restore_parameters, reader.average):
        with pytest.raises(InputError, match="no checkpoint in"):
            read(1) if read == reader.average else read(None)
    assert not (tmp_path / "nothing").exists()


def test_a_missing_step_is_refused_with_those_there_are(tmp_path):
    save_all(tmp_path, {1: None, 2: None}, keep=2)
    reader = reader_of(tmp_path)
    with pytest.raises(InputError, match=r"there are steps 1, 2"):
        reader.restore_parameters(3)


@pytest.mark.parametrize("half", [True, False])
def test_a_damaged_newest_checkpoint_is_named_skipped_and_replaced(
    tmp_path, caplog, half
):
    scores = save_all(tmp_path, {1: 20.0, 2: 10.0, 3: 15.0}, keep=2)
    truncate(tmp_path / "3", half=half)
    with Checkpoints(tmp_path, keep=2, scores=scores) as checkpoints:
        restored, step = checkpoints.restore_latest(abstract(make_state(1)))
        assert step == 2
        assert_bit_equal(restored, make_state(2))
        assert str(tmp_path / "3") in caplog.text
        assert checkpoints.steps() == [1, 2]
        assert checkpoints.best_step() == 1
        assert (tmp_path / "3").exists()
        checkpoints.save(3, make_state(33))
    reader = reader_of(tmp_path)
    assert reader.steps() == [1, 2, 3]
    assert_bit_equal(reader.restore_parameters(None), make_state(33).params)


@pytest.mark.parametrize("on_device", [True, False])
def test_arrays_cut_short_are_noticed_though_their_description_is_whole(
    tmp_path, on_device
):
    save_all(tmp_path, {1: None, 2: None}, keep=2)
    files = [path for path in (tmp_path / "2").rglob("*") if path.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    sharding = SingleDeviceSharding(jax.devices()[0]) if on_device else None
    wanted = abstract(make_state(1), sharding)
    reader = reader_of(tmp_path)
    with pytest.raises(InputError, match="2 is damaged"):
        reader.restore(2, wanted)
    restored, step = reader.restore_latest(wanted)
    assert step == 1
    assert_bit_equal(restored, make_state(1))


def test_a_damaged_checkpoint_goes_when_a_new_one_is_on_disk(tmp_path):
    save_all(tmp_path, {1: None, 2: None, 10: None}, keep=2)
    save_all(tmp_path, {1: None}, keep=3)
    truncate(tmp_path / "10", half=True)
    with Checkpoints(tmp_path, keep=2, scores={}) as checkpoints:
        assert checkpoints.restore_latest(abstract(make_state(1)))[1] == 2
        checkpoints.save(4, make_state(4))
        checkpoints.wait()
        assert checkpoints.steps() == [2, 4]
    assert not (tmp_path / "10").exists()


def test_average_goes_past_a_damaged_checkpoint(tmp_path):
    save_all(tmp_path, {10: None, 20: None, 30: None}, keep=3)
    truncate(tmp_path / "20", half=True)
    mean = reader_of(tmp_path).average(2)
    assert mean["encoder"]["layer_0"]["bias"][0] == 20.0  # of 10 and 30
    assert (tmp_path / "20").exists()


def test_only_damaged_checkpoints_do_not_mean_a_new_run(tmp_path):
    save_all(tmp_path, {1: None, 2: None}, keep=2)
    for step in ("1", "2"):
        truncate(tmp_path / step, half=False)
    checkpoints = Checkpoints(tmp_path, keep=2, scores={})
    for _ in range(2):
        with pytest.raises(InputError, match="none of the checkpoints"):
            checkpoints.restore_latest(abstract(make_state(1)))


def test_a_save_under_way_is_waited_for_not_taken_for_damage(tmp_path):
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(1, make_state(1))
        assert checkpoints.restore_latest(abstract(make_state(1)))[1] == 1


def test_a_half_written_checkpoint_of_a_killed_run_is_not_seen(tmp_path):
    save_all(tmp_path, {1: None, 2: None}, keep=2)
    unfinished = tmp_path / "3.orbax-checkpoint-tmp"
    (tmp_path / "2").rename(unfinished)
    with Checkpoints(tmp_path, keep=2, scores={}) as checkpoints:
        assert checkpoints.latest_step() == 1
        checkpoints.save(3, make_state(3))
    assert not unfinished.exists()
    assert reader_of(tmp_path).steps() == [1, 3]


def test_another_width_is_refused_by_name_and_shapes(tmp_path):
    save_all(tmp_path, {1: None}, keep=1)
    checkpoints = Checkpoints(tmp_path, keep=1, scores={})
    with pytest.raises(
        InputError, match=r"params/embedding is \(16, 4\) .* \(16, 8\) in the config"
    ):
        checkpoints.restore_latest(abstract(make_state(1, width=8)))
    assert checkpoints.steps() == [1]  # a wrong config is no damage


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        ({"a": 1, "b": 1}, {"a": 1}, r"b is \(1,\) in .* absent in the config"),
        ({"a": 1}, {"a": 1, "b": 1}, r"b is absent in .* \(1,\) in the config"),
    ],
)
def test_another_tree_is_refused_by_name(tmp_path, there, here, message):
    there, here = ({name: jnp.ones(1) for name in tree} for tree in (there, here))
    with Checkpoints(tmp_path, keep=1, scores={}) as checkpoints:
        checkpoints.save(1, {"params": there})
        checkpoints.wait()
        with pytest.raises(InputError, match=message):
            checkpoints.restore(1, abstract({"params": here}))


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
    assert_bit_equal(reader_of(tmp_path).restore_parameters(None), make_state(1).params)
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be used: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1, scores={})
