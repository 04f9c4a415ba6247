"""--mode=check says what a run would take, and trains nothing."""

import dataclasses
import functools
import json
import logging
import tempfile
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from jaxformer.commands.options import Options

from configs import multi30k
from jaxformer.batch import Batch
from jaxformer.commands import check, memory
from jaxformer.data.corpus import open_prepared
from jaxformer.data.plan import Shape
from jaxformer.errors import InputError
from jaxformer.processes import Cluster
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.step import TrainStep, init_state
from tests.models.tiny import model_of

D, F, HEADS, SIZE = 16, 32, 2, 4
PAIRS = [
    (f"{a} dog sees {b} .", f"ein Hund sieht {b} {a} .")
    for a in "abcdef"
    for b in "xyz"
]
TINY = model_of(80, d_model=D, d_ff=F, num_heads=HEADS, d_k=SIZE, d_v=SIZE)


def options(folder, workdir=None, **training):
    """Options of a check on the text in `folder`, for a model of one layer."""
    config = multi30k.get_config().to_dict()
    config["data"] |= {"directory": str(folder), "dev": "train", "vocab_size": 60}
    config["batches"] |= {
        "layout": "packed", "row_length": 32, "row_multiple": 8, "executor": "python",
    }  # fmt: skip
    config["data"]["max_length"] = 32
    config["model"] |= {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": D, "d_ff": F,
        "num_heads": HEADS, "d_k": SIZE, "d_v": SIZE,
    }  # fmt: skip
    config["training"] |= {
        "tokens_per_microbatch": 256, "tokens_per_update": 256, **training,
    }  # fmt: skip
    return Options(
        mode="check", config=config, workdir=workdir, source=None, reference=None,
        split="test", checkpoint=None, decoding={},
        cluster=Cluster(
            coordinator_address=None, num_processes=None, process_id=None,
            join_timeout=300, peer_timeout=100,
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of 18 pairs to learn, one of them twice, and a blank one."""
    folder = tmp_path_factory.mktemp("text")
    pairs = [*PAIRS, PAIRS[0], ("", "leer")]
    for side, language in enumerate(("en", "de")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def result(text, workdir):
    """A whole check, in which the train step is compiled for eight devices."""
    return check.run(options(text, workdir))


def test_the_corpus_is_reported(result):
    assert result["pairs"] == len(PAIRS)
    dropped = {"empty": 1, "too_long": 0, "ratio": 0, "duplicate": 1}
    assert result["dropped"] == dropped
    json.dumps(result)


def test_the_text_is_looked_through(result, text):
    """Dev is train here, so all of it overlaps; the blank source is named."""
    corpus = result["corpus"]
    train = corpus["splits"]["train"]
    assert train["pairs"] == len(PAIRS) + 2
    blank = train["source"]["blank"]
    assert (blank["pairs"], blank["places"]) == (1, [(f"{text}/train.en", 20)])
    assert corpus["overlap"]["dev"]["pair"]["pairs"] == len(PAIRS) + 1
    assert sum(train["target"]["lengths"]["words"].values()) == train["pairs"]
    assert "19 pairs are too few" in corpus["left_out"]["languages"]
    assert "test_2016_flickr.en" in corpus["left_out"]["test"]


def test_tokens_are_those_of_the_text(result, workdir):
    train = open_prepared(workdir).train
    updates = result["updates_per_epoch"]
    tokens = {side: getattr(train, side).lengths.sum() for side in train._fields}
    assert result["tokens_per_update"] == round(tokens["target"] / updates)
    assert result["source_tokens_per_update"] == round(tokens["source"] / updates)
    ((rows, source, target),) = result["shapes"]
    assert (rows % 8, source, target) == (0, 32, 32)
    assert result["places_per_update"] == {"source": rows * 32, "target": rows * 32}
    share = sum(tokens.values()) / updates / (rows * 64)
    assert result["real_token_share"] == pytest.approx(share, abs=1e-4)


def test_parameters_are_counted_by_part(result, workdir):
    attention = 4 * D * HEADS * SIZE
    feed_forward = 2 * D * F + F + D
    assert result["parameters_by_part"] == {
        "embedding": open_prepared(workdir).tokenizer.vocab_size * D,
        "encoder/self_attention": attention,
        "encoder/feed_forward": feed_forward,
        "encoder/norm": 2 * 2 * D,
        "decoder/self_attention": attention,
        "decoder/cross_attention": attention,
        "decoder/feed_forward": feed_forward,
        "decoder/norm": 3 * 2 * D,
    }
    assert result["parameters"] == sum(result["parameters_by_part"].values())


def test_memory_holds_the_state_on_every_device(result):
    """Parameters and Adam's two moments, float32; then activations and gradients."""
    assert result["bytes_per_device"] > 3 * 4 * result["parameters"]


def test_nothing_is_trained(result, workdir):
    assert not (workdir / "checkpoints").exists()
    assert not (workdir / "metrics.jsonl").exists()
    assert result["seconds_per_update_estimate"] > 0


def test_without_a_workdir_only_the_page_is_left(text, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(check, "step_memory", lambda *_: None)
    page = tmp_path / "page.html"
    asked = dataclasses.replace(options(text, tokens_per_update=512), output=str(page))
    with caplog.at_level(logging.INFO, logger="jaxformer"):
        result = check.run(asked)
    assert result["bytes_per_device"] is None
    assert list(tmp_path.iterdir()) == [page]
    assert "train: 1 pair with a blank source" in page.read_text()
    report = caplog.text
    assert "kept only with --workdir" in report
    assert "18 of 20 pairs kept, dropped: 1 empty, 1 duplicate" in report
    assert "4 things to look at" in report
    assert "dev: 19 pairs of 20 with a source that train has too" in report
    assert "train: 1 pair with a blank source" in report
    assert f"{result['parameters']:,} parameters" in report
    assert "up to 2 microbatch(es)" in report


def test_neither_config_nor_workdir_is_refused(text):
    nothing = SimpleNamespace(config=None, workdir=None)
    with pytest.raises(InputError, match=r"give --config=\.\.\."):
        check.run(nothing)


def test_pre_norm_and_learned_positions_are_parts_too():
    params = {
        "embedding": jnp.zeros((5, 2)),
        "position_embedding": jnp.zeros((7, 2)),
        "encoder": {"norm": {"scale": jnp.zeros(2), "bias": jnp.zeros(2)}},
    }
    assert check.parameters_by_part(params) == {
        "embedding": 10, "position_embedding": 14, "encoder/norm": 4,
    }  # fmt: skip


@pytest.mark.parametrize("accumulate", [False, True])
def test_the_largest_shape_is_the_one_compiled(accumulate):
    """Of equal places, the longest rows: attention grows with their square."""
    asked = []

    class Lowered:
        def compile(self):
            return SimpleNamespace(memory_analysis=lambda: None)

    class Step:
        def lower(self, state, batch: Batch, *, accumulate):
            asked.append((batch.source.shape, batch.target.shape, accumulate))
            return Lowered()

    mesh = jax.make_mesh((8, 1, 1), ("data", "fsdp", "tensor"))
    learner = SimpleNamespace(
        mesh=mesh, init=lambda: {"x": jnp.zeros(2)}, train_step=Step()
    )
    plan = SimpleNamespace(
        shapes=(Shape(64, 8, 8), Shape(16, 32, 24), Shape(32, 16, 16)),
        microbatches_per_update=2 if accumulate else 1,
    )
    run = SimpleNamespace(model=TINY)
    assert memory.step_memory(run, learner, plan) is None
    assert asked == [((16, 32), (16, 24), accumulate)]


@pytest.mark.parametrize(("rows", "filled"), [(8, 8), (13, 16), (1, 8)])
def test_rows_that_do_not_divide_over_the_devices_are_filled_up(rows, filled):
    """As the batches of training are."""
    mesh = jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor"))
    batch = memory.abstract_batch(mesh, Shape(rows, 6, 5))
    assert [array.shape for array in batch] == [(filled, 6), (filled, 5)] * 2


# Two programs compiled for the arithmetic ---------------------------------------------


@pytest.fixture(scope="module")
def lower():
    """Lower the train step of a model whose matrices outweigh the rest."""
    optimizer, _ = make_optimizer(
        d_model=128, warmup_steps=4, learning_rate_scale=1.0, beta1=0.9, beta2=0.98,
        epsilon=1e-9, clip_norm=None,
    )  # fmt: skip

    def lower(shape: Shape, *, accumulate: bool, window: int | None = None):
        model = model_of(
            512, d_model=128, d_ff=512, num_heads=4, d_k=32, d_v=32,
            attention_window=window, encoder_layers=2,
        )  # fmt: skip
        step = TrainStep(
            model, optimizer, label_smoothing=0.1, ema_decay=None, max_bad_steps=3
        )
        init = functools.partial(init_state, model, optimizer, seed=0, ema=False)
        state = jax.eval_shape(lambda: nn.unbox(init()))
        source, target = (
            jax.ShapeDtypeStruct((shape.rows, length), jnp.int32)
            for length in (shape.source_length, shape.target_length)
        )
        batch = Batch(source, target, source, target)
        return model, state, step.lower(state, batch, accumulate=accumulate)

    return lower


@pytest.mark.parametrize(
    ("shape", "window"), [(Shape(8, 24, 32), None), (Shape(1, 512, 256), 16)]
)
def test_operations_are_those_that_xla_counts(lower, shape, window):
    """At 256 target places the loop over the logits runs once, as XLA assumes."""
    model, _, lowered = lower(shape, accumulate=False, window=window)
    counted = lowered.cost_analysis()["flops"]
    assert model.flops(*shape) == pytest.approx(counted, rel=0.1)


def test_accumulating_holds_gradients_beside_the_state(lower):
    _, state, lowered = lower(Shape(8, 24, 32), accumulate=True)
    total, same_state, batch, index = lowered.args_info[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.params)]
    assert [leaf.shape for leaf in jax.tree.leaves(total.grads)] == shapes
    assert all(leaf.donated for leaf in jax.tree.leaves(total))
    assert not any(leaf.donated for leaf in jax.tree.leaves((same_state, batch, index)))


def test_a_product_is_timed(monkeypatch):
    monkeypatch.setattr(check, "SIZES_TO_TIME", (8, 16))
    assert 0.0 < check.matmul_rate("float32") < 1e15
