"""How our parameters are called and laid out in a Marian checkpoint of Hugging Face.

One table says both for `jaxformer.export.marian` and `jaxformer.export.marian_import`,
so that they are each other's inverse. Numbers are moved, and multiplied by powers of
two alone: what is written and read back is equal bit for bit.

Order. Marian's sinusoids are ours with all sines first and all cosines behind, where
section 3.5 has them in turn. A model does not care in which order its d_model numbers
come, if all that reads or writes them agrees. So on every axis of that size our columns
0, 2, 4, ... move to the first half and 1, 3, 5, ... to the second; heads stay.

Scale. Its layer norm divides by sqrt(variance + 1e-5), where a run adds an epsilon of
its own. With c times as large an input that is sqrt(variance + 1e-5 / c^2) for ours, so
the stream from the first norm of a stack to its last one is made c times as large: what
writes it is multiplied by c and what reads it is divided by c. The power of two nearest
to sqrt(1e-5 / epsilon) keeps all digits; for 1e-6 it is 4, which makes 6e-7 of 1e-5.
The first norm of a stack keeps 1e-5: positions cannot be scaled.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

# The axes of a parameter, by the letters of `jaxformer.models.attention`. A "|" stands
# between those that are summed over and those that come out of a matrix, which Marian
# has as one axis each, the second one first.
_PROJECTIONS = {
    "query/kernel": ("q_proj.weight", "D|HK"),
    "query/bias": ("q_proj.bias", "HK"),
    "key/kernel": ("k_proj.weight", "D|HK"),
    "key/bias": ("k_proj.bias", "HK"),
    "value/kernel": ("v_proj.weight", "D|HK"),
    "value/bias": ("v_proj.bias", "HK"),
    "output/kernel": ("out_proj.weight", "HK|D"),
    "output/bias": ("out_proj.bias", "D"),
}
_FEED_FORWARD = {
    "feed_forward/hidden/kernel": ("fc1.weight", "D|F"),
    "feed_forward/hidden/bias": ("fc1.bias", "F"),
    "feed_forward/output/kernel": ("fc2.weight", "F|D"),
    "feed_forward/output/bias": ("fc2.bias", "D"),
}
_ATTENTIONS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
LAYER_NORM_EPSILON = 1e-5  # of every Marian model: PyTorch's
EMBEDDING = "model.shared.weight"  # [V, D]
LOGITS_BIAS = "final_logits_bias"  # [1, V]


class Place(NamedTuple):
    """One parameter of a layer: where we have it and where Marian does."""

    path: tuple[str, ...]  # ("encoder", "layer_0", "self_attention", "query", "kernel")
    name: str  # "model.encoder.layers.0.self_attn.q_proj.weight"
    axes: str

    @property
    def is_attention_bias(self) -> bool:
        """Whether a model has it only with `attention_bias`."""
        return self.path[2].endswith("_attention") and self.path[-1] == "bias"

    def scale(self, factor: float, layers: dict[str, int]) -> float:
        """What it is multiplied by where the stream is `factor` times as large."""
        stack, layer, module, part, kind = self.path
        name = module.removesuffix("_sublayer")
        if part == "norm":  # writes the stream, unless it is the stack's last
            is_last = (layer, name) == (f"layer_{layers[stack] - 1}", "feed_forward")
            return 1.0 if is_last else factor
        if (layer, name) == ("layer_0", "self_attention"):  # between the embedding
            return 1.0  # and the first norm
        if part == "output":
            return factor
        is_reader = part in ("query", "hidden") or name == "self_attention"
        return 1.0 / factor if is_reader and kind == "kernel" else 1.0


def places(layers: dict[str, int]) -> Iterator[Place]:
    """Every parameter of both stacks, attention biases included."""
    for stack, attentions in _ATTENTIONS.items():
        layer = dict(_FEED_FORWARD)
        norms = {"feed_forward": "final_layer_norm"}
        for ours, theirs in attentions.items():
            for path, (name, axes) in _PROJECTIONS.items():
                layer[f"{ours}/{path}"] = (f"{theirs}.{name}", axes)
            norms[ours] = f"{theirs}_layer_norm"
        for ours, theirs in norms.items():
            layer[f"{ours}_sublayer/norm/scale"] = (f"{theirs}.weight", "D")
            layer[f"{ours}_sublayer/norm/bias"] = (f"{theirs}.bias", "D")
        for index in range(layers[stack]):
            for path, (name, axes) in layer.items():
                yield Place(
                    (stack, f"layer_{index}", *path.split("/")),
                    f"model.{stack}.layers.{index}.{name}",
                    axes,
                )


def stream_scale(epsilon: float) -> float:
    """The c of this module's docstring, for a model whose norms add `epsilon`."""
    return 2.0 ** round(math.log2(LAYER_NORM_EPSILON / epsilon) / 2)


def sines_first(d_model: int) -> np.ndarray:
    """Which of our columns each of Marian's is: int [D]."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def to_marian(ours: np.ndarray, axes: str) -> np.ndarray:
    """Lay out one of our parameters as Marian does."""
    contracted, bar, _ = axes.partition("|")
    for axis, letter in enumerate(axes.replace("|", "")):
        if letter == "D":
            ours = np.take(ours, sines_first(ours.shape[axis]), axis=axis)
    if not bar:
        return ours.reshape(-1)
    inputs = math.prod(ours.shape[: len(contracted)])
    return np.ascontiguousarray(ours.reshape(inputs, -1).T)


def from_marian(theirs: np.ndarray, axes: str, sizes: dict[str, int]) -> np.ndarray:
    """Undo `to_marian`, for `sizes` of the letters."""
    letters = axes.replace("|", "")
    ours = theirs.T.reshape([sizes[letter] for letter in letters])
    for axis, letter in enumerate(letters):
        if letter == "D":
            ours = np.take(ours, np.argsort(sines_first(sizes["D"])), axis=axis)
    return np.ascontiguousarray(ours)


def marian_shape(axes: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape of a parameter there: [outputs, inputs], or one axis."""
    parts = axes.split("|")
    return tuple(math.prod(sizes[letter] for letter in part) for part in parts[::-1])
