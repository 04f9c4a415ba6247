"""A model directory for CTranslate2, an engine that translates on CPUs and GPUs.

Written with the package's own specifications (`ctranslate2.specs`), so its binary
format is its own affair. The package is optional and imported where it is used: extra
`export`. What is written computes what the model computes: the same log-probabilities
and, by the search that the README in the directory shows, the same translations. Used
by `--mode=export`.

Shapes are those of `jaxformer.models.attention`; CTranslate2 stores a matrix as
[outputs, inputs] where ours is [inputs, outputs].
"""

from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import jax
import numpy as np

from jaxformer.batch import BOS, EOS, UNK
from jaxformer.errors import InputError
from jaxformer.export import require_transformer
from jaxformer.export.ctranslate2_readme import readme
from jaxformer.models.layers import sinusoidal_positions
from jaxformer.models.transformer.config import TransformerConfig

# Positions written for sinusoids, which have no end of their own. CTranslate2 refuses
# what is longer; its own default cuts a source at 1,024 pieces, and a translation may
# be longer than its source. The table is shared: 8 MB of the base model's 260.
POSITIONS = 4096


class Tokenizer(Protocol):
    """What the export needs of a tokeniser."""

    source_model: bytes  # a SentencePiece model, as in its file
    target_model: bytes  # likewise; the same where both languages are cut by one

    def pieces(self) -> list[str]:
        """The piece of every id, in their order."""


def write_ctranslate2(
    folder: Path,
    config: TransformerConfig,
    params: dict,
    *,
    quantization: str,
    tokenizer: Tokenizer,
    direction: str,
    longest: int,
    decoding: dict,
) -> None:
    """Write all that `ctranslate2.Translator` needs into an existing, empty folder.

    `params` are nested dicts of arrays. `direction` ("en-de"), `longest` (pieces of a
    line in training) and `decoding` (`beam_size`, `alpha`, `extra_length`) are what the
    README shows. Raises InputError if the package is missing, if it cannot express the
    model, and for a `quantization` that it does not have.
    """
    package = _package()
    spec, pieces = make_spec(config, params), tokenizer.pieces()
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    tokens = {"unk": pieces[UNK], "bos": pieces[BOS], "eos": pieces[EOS]}
    for name, token in tokens.items():
        setattr(spec.config, f"{name}_token", token)
    spec.config.decoder_start_token = pieces[BOS]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    spec.validate()
    try:
        spec.optimize(quantization=quantization)
    except (ValueError, RuntimeError) as error:  # unknown; bfloat16 needs PyTorch
        raise InputError(
            f"--quantization={quantization} is not possible here ({error}); choose "
            "float32, float16 or int8"
        ) from error
    spec.save(str(folder))
    models = {"source": tokenizer.source_model, "target": tokenizer.target_model}
    files = {side: f"{side}.spm" for side in models}
    if len(set(models.values())) == 1:
        files = dict.fromkeys(models, "sentencepiece.model")
    for side, model in models.items():
        (folder / files[side]).write_bytes(model)
    text = readme(
        direction=direction, quantization=quantization, version=package.__version__,
        positions=len(_position_table(config, params)), pieces=pieces, files=files,
        longest=longest, decoding=decoding, dtype=config.dtype,
    )  # fmt: skip
    (folder / "README.md").write_text(text, encoding="utf-8")


def make_spec(config: TransformerConfig, params: dict) -> Any:
    """The model as a `ctranslate2.specs.TransformerSpec`, without its vocabulary.

    Raises InputError if the package is missing, and for parameters that it cannot
    express.
    """
    require_transformer(config)
    specs = _package().specs
    if config.attention_window is not None:
        raise InputError(
            "CTranslate2 has no restricted self-attention (model.attention_window="
            f"{config.attention_window}); choose another --format"
        )
    leaves = _Leaves(params)
    # Heads of queries and keys (K) and of values (U) have one size there: the smaller
    # ones are filled up with zeros, which add nothing to any product.
    size = max(config.d_k, config.d_v)
    is_usual = size * config.num_heads == config.d_model
    common = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_first,
        "activation": _activation(specs, config),
        "head_dim": None if is_usual else size,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, **common),
        specs.TransformerDecoderSpec(config.decoder_layers, **common),
    )
    embedding = leaves.take("embedding")  # [V, D]
    positions = _position_table(config, params)
    if config.positions == "learned":
        leaves.take("position_embedding")
    spec.encoder.embeddings[0].weight = embedding
    spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    bias = leaves.take("logits_bias", optional=True)
    if bias is not None:
        spec.decoder.projection.bias = bias
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.scale_embeddings = True
        stack.position_encodings.encodings = positions
        for index, layer in enumerate(stack.layer):
            path = f"{name}/layer_{index}"
            _set_attention(
                layer.self_attention, leaves, f"{path}/self_attention", config
            )
            if name == "decoder":
                _set_attention(
                    layer.attention, leaves, f"{path}/cross_attention", config
                )
            _set_feed_forward(layer.ffn, leaves, path)
        if config.norm_first:
            _set_norm(stack.layer_norm, leaves, f"{name}/norm")
    leaves.require_all_taken()
    return spec


def _package() -> ModuleType:
    """CTranslate2 itself, with its specifications."""
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError as error:
        raise InputError(
            f"--format=ctranslate2 needs the package ctranslate2 ({error}); run: "
            "pip install 'jaxformer[export]'"
        ) from error
    return ctranslate2


class _Leaves:
    """Parameters by path, taken once each, so that none is forgotten."""

    def __init__(self, params: dict) -> None:
        found = jax.tree_util.tree_leaves_with_path(params)
        self._left = {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf
            for path, leaf in found
        }

    def take(self, path: str, *, optional: bool = False) -> np.ndarray | None:
        """A float32 copy of one of them; None for an optional one that is not there.

        A copy, because quantisation overwrites what it is given.
        """
        leaf = self._left.pop(path, None) if optional else self._left.pop(path)
        return None if leaf is None else np.array(leaf, np.float32)

    def require_all_taken(self) -> None:
        """Raise InputError if there is a parameter that nobody took."""
        if self._left:
            raise InputError(
                f"CTranslate2 has no place for the parameter {min(self._left)} of this "
                "model; choose another --format"
            )


def _activation(specs: ModuleType, config: TransformerConfig) -> Any:
    """The feed-forward activation; models of the paper's have max(0, x)."""
    try:
        return specs.Activation[config.activation.upper()]
    except KeyError:
        raise InputError(
            f"CTranslate2 has no activation {config.activation!r} (model.activation); "
            "choose another --format"
        ) from None


def _position_table(config: TransformerConfig, params: dict) -> np.ndarray:
    """Positions as float32 [L, D]: all that were learned, or POSITIONS of sinusoids."""
    if config.positions == "learned":
        return np.array(params["position_embedding"], np.float32)
    if config.positions == "sinusoidal":
        return sinusoidal_positions(POSITIONS, config.d_model)
    raise InputError(
        f"CTranslate2 has no positions {config.positions!r} (model.positions); choose "
        "another --format"
    )


def _set_norm(spec: Any, leaves: _Leaves, path: str) -> None:
    spec.gamma, spec.beta = leaves.take(f"{path}/scale"), leaves.take(f"{path}/bias")


def _set_feed_forward(spec: Any, leaves: _Leaves, layer: str) -> None:
    """Equation 2 and the norm of its sub-layer."""
    for linear, name in ((spec.linear_0, "hidden"), (spec.linear_1, "output")):
        kernel = leaves.take(f"{layer}/feed_forward/{name}/kernel")  # [inputs, outputs]
        linear.weight = np.ascontiguousarray(kernel.T)
        linear.bias = leaves.take(f"{layer}/feed_forward/{name}/bias")
    _set_norm(spec.layer_norm, leaves, f"{layer}/feed_forward_sublayer/norm")


def _set_attention(
    spec: Any, leaves: _Leaves, path: str, config: TransformerConfig
) -> None:
    """The four projections and the norm of their sub-layer.

    Self-attention has one matrix for queries, keys and values (linear_0), attention to
    the source one for queries and one for keys and values; W^O comes last.
    """
    size = max(config.d_k, config.d_v)
    if size != config.d_k:
        spec.queries_scale = np.float32(config.d_k**-0.5)
    query, key, value = (
        _into_heads(leaves, f"{path}/{name}", size)
        for name in ("query", "key", "value")
    )
    if len(spec.linear) == 2:
        _set_rows(spec.linear[0], query, key, value)
    else:
        _set_rows(spec.linear[0], query)
        _set_rows(spec.linear[1], key, value)
    kernel = leaves.take(f"{path}/output/kernel")  # [H, U, D]
    kernel = _fill_up(kernel, size, axis=1).reshape(-1, config.d_model)  # [H*size, D]
    spec.linear[-1].weight = np.ascontiguousarray(kernel.T)
    bias = leaves.take(f"{path}/output/bias", optional=True)
    if bias is not None:
        spec.linear[-1].bias = bias
    _set_norm(spec.layer_norm, leaves, f"{path}_sublayer/norm")


def _into_heads(
    leaves: _Leaves, path: str, size: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """A projection into heads of `size`: [H * size, D], and its bias [H * size]."""
    kernel = _fill_up(leaves.take(f"{path}/kernel"), size, axis=2)  # [D, H, size]
    bias = leaves.take(f"{path}/bias", optional=True)  # [H, K]
    if bias is not None:
        bias = _fill_up(bias, size, axis=1).reshape(-1)
    return kernel.reshape(len(kernel), -1).T, bias


def _fill_up(x: np.ndarray, size: int, *, axis: int) -> np.ndarray:
    """Add zeros behind `axis` until it has `size`."""
    missing = [(0, size - n if i == axis else 0) for i, n in enumerate(x.shape)]
    return np.pad(x, missing)


def _set_rows(spec: Any, *parts: tuple[np.ndarray, np.ndarray | None]) -> None:
    """Set a linear map to several maps of the same input, one below the other."""
    spec.weight = np.concatenate([weight for weight, _ in parts])
    if any(bias is not None for _, bias in parts):
        spec.bias = np.concatenate(
            [np.zeros(len(w), np.float32) if b is None else b for w, b in parts]
        )
