"""What the benchmarks measure: Transformers of given sizes, batches and trainers."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, Mesh

from jaxformer.batch import Batch
from jaxformer.config.sections import OptimizerConfig, TrainingConfig
from jaxformer.configs import wmt_base
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translator import Translator
from jaxformer.models.architectures import config_type, make_model
from jaxformer.models.sequence_model import Model
from jaxformer.runs.open import number_of_searches
from jaxformer.tokens import EOS
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.sharding import (
    AXES,
    batch_sharding,
    born_sharded,
    copy_to,
    local_mesh,
    on_mesh,
    put_batch,
    state_shardings,
)
from jaxformer.training.step import TrainStep, init_state

# Of the peers, as configs/wmt_base.py has them.
DROPOUT, LABEL_SMOOTHING = 0.1, 0.1  # section 5.4
BETA1, BETA2, EPSILON = 0.9, 0.98, 1e-9  # section 5.3
LEARNING_RATE = 1e-4  # a schedule costs no time


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A Transformer and a batch of full rows; by default the paper's base model."""

    layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    vocabulary: int = 37_000
    rows: int = 32
    source: int = 32  # tokens a row, EOS included
    target: int = 32
    dtype: str = "float32"  # of products
    fused_attention: bool = False

    def model(self, *, activation_dtype: str | None = None, **changes: Any) -> Model:
        """Make a model of these sizes, with further keys of its config changed.

        `activation_dtype` None is that of this process's devices.
        """
        values = wmt_base.get_config().model.to_dict()
        sizes = vars(self) | {"dropout": DROPOUT}
        sizes |= dict.fromkeys(("encoder_layers", "decoder_layers"), self.layers)
        sizes |= dict.fromkeys(("d_k", "d_v"), self.d_model // self.num_heads)
        values |= {key: size for key, size in sizes.items() if key in values}
        section = config_type("transformer")(**(values | changes))
        return make_model(
            section, vocab_size=self.vocabulary, rematerialise=False,
            activation_dtype=activation_dtype,
        )  # fmt: skip

    def sentences(self, length: int, seed: int) -> np.ndarray:
        """Draw random sentences without padding: int32 [rows, length], EOS last."""
        draw = np.random.default_rng(seed)
        shape = (self.rows, length)
        ids = draw.integers(EOS + 1, self.vocabulary, shape, dtype=np.int32)
        ids[:, -1] = EOS
        return ids

    def batch(self) -> Batch:
        source, target = self.sentences(self.source, 0), self.sentences(self.target, 1)
        return Batch(source, target, np.ones_like(source), np.ones_like(target))


SIZES = {
    "base": Sizes(),
    "big": Sizes(d_model=1024, d_ff=4096, num_heads=16),
    "small": Sizes(
        layers=4, d_model=128, d_ff=256, num_heads=4, vocabulary=10_000, rows=256,
        source=16, target=16,
    ),
    "tiny": Sizes(
        layers=1, d_model=16, d_ff=32, num_heads=2, vocabulary=64, rows=8, source=8,
        target=8,
    ),
}  # fmt: skip


def device_name() -> str:
    """Name the device of this process as PyTorch and CTranslate2 do."""
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def one_device() -> Mesh:
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh((1, 1, 1), AXES, axis_types=kinds, devices=jax.devices()[:1])


def training_config() -> TrainingConfig:
    return TrainingConfig(**wmt_base.get_config().training.to_dict())


class Trainer:
    """The train step of a model on one device, with its state."""

    def __init__(self, model: Model) -> None:
        self.mesh, config = one_device(), training_config()
        rule = OptimizerConfig(**wmt_base.get_config().optimizer.to_dict())
        optimizer, _ = make_optimizer(rule, d_model=model.d_model, steps=config.steps)
        with on_mesh(self.mesh):
            init = functools.partial(init_state, model, optimizer, config)
            shardings = state_shardings(self.mesh, init)
            self.step = TrainStep(model, optimizer, config, shardings)
            self.state = born_sharded(self.mesh, init)

    def compile(self, batch: Batch) -> jax.stages.Compiled:
        with on_mesh(self.mesh):
            rows = put_batch(self.mesh, batch)
            return self.step.lower(self.state, rows, accumulate=False).compile()

    def start(self, batch: Batch) -> jax.Array:
        """Start an update with a batch of numpy arrays; returns its loss per token."""
        with on_mesh(self.mesh):
            self.state, report = self.step(self.state, (put_batch(self.mesh, batch),))
        return report.sums.loss / report.sums.tokens


def draw_parameters(model: Model) -> dict:
    """Draw parameters, numpy arrays."""
    draw = jax.jit(lambda: nn.unbox(model.init(jax.random.key(0))))
    return jax.tree.map(np.array, draw())


def make_translator(
    model: Model, params: dict, tokenizer: Any, decoding: dict
) -> Translator:
    """Make a translator on the local devices; `decoding` is the config's section."""
    mesh = local_mesh()
    return Translator(
        [model], [copy_to(mesh, params)], tokenizer,
        language="en", options=TranslateOptions(**decoding),
        rows=batch_sharding(mesh), searches=number_of_searches(mesh),
    )  # fmt: skip
