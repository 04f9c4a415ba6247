"""Models for CTranslate2, an engine that translates on CPUs and GPUs.

The package's own specifications (`ctranslate2.specs`) write the files. The exported
model computes the same log-probabilities, and the folder's `translate.py` the same
translations, if the weights are float32. CTranslate2 stores a matrix as
[outputs, inputs], the transpose of ours.
"""

import json
from pathlib import Path
from string import Template
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.config.sections import Config
from jaxformer.decoding.ctranslate2_search import POSITIONS
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports import parameters
from jaxformer.models.positions import position_table
from jaxformer.models.transformer.config import SINUSOIDS, TransformerConfig
from jaxformer.system.errors import InputError, packages_of
from jaxformer.system.files import entries
from jaxformer.tokens import BOS, EOS, PAD, UNK, AnyTokenizer

if TYPE_CHECKING:
    from ctranslate2.specs.model_spec import LayerSpec

PROGRAM = "translate.py"


def write_ctranslate2(
    folder: Path,
    config: Config,
    params: dict,
    tokenizer: AnyTokenizer,
    options: TranslateOptions,
    *,
    quantization: str,
) -> None:
    """Write the files of a `ctranslate2.Translator` into an existing, empty folder.

    `params` are nested dicts of arrays. Raises InputError if the package is missing, if
    it cannot express the model, or if it cannot write this `quantization`.
    """
    with packages_of("export"):
        import ctranslate2.specs
    spec, positions = _spec(ctranslate2.specs, config.model, params)
    pieces = tokenizer.pieces()
    spec.register_source_vocabulary(tokenizer.source_pieces())
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.eos_token = pieces[UNK], pieces[EOS]
    start = EOS if config.model.first_input == "eos" else BOS
    spec.config.bos_token = pieces[BOS]
    spec.config.decoder_start_token = pieces[start]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.config.layer_norm_epsilon = config.model.layer_norm_epsilon
    spec.validate()
    try:
        spec.optimize(quantization=quantization)
    except (ValueError, RuntimeError) as error:  # unknown; bfloat16 needs PyTorch
        raise InputError(
            f"CTranslate2 cannot write {quantization} weights here ({error}); choose "
            "float32, float16 or int8"
        ) from error
    spec.save(str(folder))
    vocabularies = [file.name for file in entries(folder, "*_vocabulary.json")]
    files = parameters.write_tokenizer(folder, tokenizer)
    values = dict(
        vars(options) | files,
        program=parameters.template("program.txt").strip(),
        vocabulary=" and ".join(f"`{name}`" for name in vocabularies),
        vocabulary_file=vocabularies[0],
        tokenizer=" and ".join(f"`{name}`" for name in dict.fromkeys(files.values())),
        direction=parameters.in_markdown(config.data.direction),
        quantization=quantization,
        version=ctranslate2.__version__,
        positions=f"{len(positions):,}",
        position_count=len(positions),
        tag=json.dumps(config.data.only_tag),
        target_tag=json.dumps(config.data.only_target_tag),
        targets=json.dumps(config.data.target_tags),
        longest=f"{config.data.max_length:,}",
        dtype=config.model.dtype,
        penalty="n" if options.length_penalty == "power" else "((5 + n) / 6)",
        eos=json.dumps(pieces[EOS]),
        suppressed=json.dumps([[pieces[PAD]], [pieces[BOS]]]),
    )
    for template, name in ("ctranslate2.md", "README.md"), ("ctranslate2.txt", PROGRAM):
        text = Template(parameters.template(template)).substitute(values)
        (folder / name).write_text(text, encoding="utf-8")


def _spec(specs: ModuleType, config: TransformerConfig, params: dict) -> tuple:
    """Return a `TransformerSpec` without vocabulary, and its table of positions."""
    parameters.require_fields("CTranslate2", config, {
        **parameters.PLAIN,
        "positions": (*SINUSOIDS, "learned"),
    })  # fmt: skip
    left = parameters.flat(params)
    common = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_first,
        "activation": specs.Activation[config.activation.upper()],
        "head_dim": max(config.d_k, config.d_v),  # of queries, keys and values
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, **common),
        specs.TransformerDecoderSpec(config.decoder_layers, **common),
    )
    embedding = left.pop("embedding")  # [V, D]
    spec.encoder.embeddings[0].weight = left.pop("source_embedding", embedding)
    spec.decoder.embeddings.weight = embedding
    spec.decoder.start_from_zero_embedding = config.first_input == "zeros"
    spec.decoder.projection.weight = left.pop("output_embedding", embedding)
    if "logits_bias" in left:
        spec.decoder.projection.bias = left.pop("logits_bias")
    positions = left.pop("position_embedding", None)  # [L, D]
    if positions is None:
        positions = position_table(config.positions, POSITIONS, config.d_model)
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.scale_embeddings = True
        stack.position_encodings.encodings = positions
        for index, layer in enumerate(stack.layer):
            path = f"{name}/layer_{index}"
            _set(layer.self_attention, left, f"{path}/self_attention", config)
            if name == "decoder":
                _set(layer.attention, left, f"{path}/cross_attention", config)
            _set(layer.ffn, left, f"{path}/feed_forward", config)
        if config.norm_first:
            _set_norm(stack.layer_norm, left, f"{name}/norm")
    assert not left, left  # `require_fields` has refused what would be
    return spec, positions


# Our linear maps of each sub-layer, grouped as CTranslate2 stacks those of one input.
_LINEAR = {
    "self_attention": (("query", "key", "value"), ("output",)),
    "cross_attention": (("query",), ("key", "value"), ("output",)),
    "feed_forward": (("hidden",), ("output",)),
}


def _set(spec: "LayerSpec", left: dict, path: str, config: TransformerConfig) -> None:
    """Set the linear maps and the norm of a sub-layer.

    Heads of keys or values that are smaller than the others get zeros, which add
    nothing to any product.
    """
    is_attention, size = hasattr(spec, "linear"), max(config.d_k, config.d_v)
    if is_attention and size != config.d_k:
        spec.queries_scale = np.float32(config.d_k**-0.5)
    linears = spec.linear if is_attention else (spec.linear_0, spec.linear_1)
    for linear, names in zip(linears, _LINEAR[path.split("/")[-1]], strict=True):
        weights, biases = [], []
        for name in names:
            kernel = left.pop(f"{path}/{name}/kernel")
            bias = left.pop(f"{path}/{name}/bias", np.zeros((0, 0), np.float32))
            if is_attention and name == "output":  # [H, K, D]
                gap = (0, size - kernel.shape[1])
                kernel = np.pad(kernel, ((0, 0), gap, (0, 0)))
                kernel = kernel.reshape(-1, config.d_model)
            elif is_attention:  # [D, H, K] and [H, K]
                gap = (0, size - kernel.shape[2])
                kernel = np.pad(kernel, ((0, 0), (0, 0), gap))
                kernel = kernel.reshape(len(kernel), -1)
                bias = np.pad(bias, ((0, 0), gap))
            weights.append(kernel.T)
            biases.append(bias.ravel())
        linear.weight = np.ascontiguousarray(np.concatenate(weights))
        if biases[0].size:
            linear.bias = np.concatenate(biases)
    _set_norm(spec.layer_norm, left, f"{path}_sublayer/norm")


def _set_norm(spec: "LayerSpec", left: dict, path: str) -> None:
    spec.gamma, spec.beta = left.pop(f"{path}/scale"), left.pop(f"{path}/bias")
