"""A whole translation as one serialized JAX program, for machines without jaxformer.

`jax.export` keeps a program as StableHLO for years to come. What is written:

    translate.bin      the program: (parameters, source ids) -> hypotheses
    parameters.npz     the parameters by name
    sentencepiece.model, example.py    text in, text out, with jax and sentencepiece

The program takes any number of sentences of up to so many pieces.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import search_translations
from jaxformer.export import require_transformer
from jaxformer.models.architectures import make_model
from jaxformer.models.transformer.config import TransformerConfig

PLATFORMS = ("cpu", "cuda", "tpu")

EXAMPLE = '''\
"""Translates lines of standard input; needs jax, numpy and sentencepiece."""

import sys

import jax
import numpy as np
import sentencepiece

folder = __file__.rpartition("/")[0] or "."
program = jax.export.deserialize(open(f"{folder}/translate.bin", "rb").read())
parameters = dict(np.load(f"{folder}/parameters.npz"))
pieces = sentencepiece.SentencePieceProcessor(
    model_file=f"{folder}/sentencepiece.model"
)
length, end = LENGTH, pieces.eos_id()

lines = [" ".join(line.split()) for line in sys.stdin]
source = np.zeros((len(lines), length), np.int32)
for row, ids in zip(source, pieces.encode(lines, add_eos=True)):
    if len(ids) > length:
        sys.exit(f"a line has {len(ids)} pieces, more than {length}")
    row[: len(ids) if len(ids) > 1 else 0] = ids if len(ids) > 1 else []
found = jax.jit(program.call)(parameters, source)
for tokens in np.asarray(found["tokens"])[:, 0].tolist():
    tokens = tokens[: tokens.index(end)] if end in tokens else []
    print(pieces.decode(tokens))
'''


def write_stablehlo(
    folder: Path,
    config: TransformerConfig,
    params: Mapping[str, Any],
    tokenizer_model: bytes,
    *,
    options: SearchOptions,
    extra_length: int,
    source_length: int,
) -> None:
    """Write the search for sources of up to `source_length` pieces into `folder`."""
    require_transformer(config)
    named = flat_names(params)
    program = translation_program(config, options=options, extra_length=extra_length)
    (batch,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(program), platforms=PLATFORMS)(
        {
            name: jax.ShapeDtypeStruct(value.shape, value.dtype)
            for name, value in named.items()
        },
        jax.ShapeDtypeStruct((batch, source_length), np.int32),
    )
    (folder / "translate.bin").write_bytes(exported.serialize())
    np.savez(folder / "parameters.npz", **named)
    (folder / "sentencepiece.model").write_bytes(tokenizer_model)
    example = EXAMPLE.replace("LENGTH", str(source_length))
    (folder / "example.py").write_text(example)


def translation_program(
    config: TransformerConfig, *, options: SearchOptions, extra_length: int
) -> Any:
    """A function of (parameters by name, source int32 [B, S]) to its hypotheses.

    They are the fields of `SearchResult`, by name.
    """
    # One program for all platforms: no kernel that only one of them has.
    config = dataclasses.replace(config, fused_attention=False)

    def translate(named: Mapping[str, jax.Array], source: jax.Array) -> dict:
        params = nested(named)
        model = make_model(
            config, vocab_size=len(params["embedding"]), rematerialise=False
        )
        return search_translations(
            [model], [params], source, options=options, extra_length=extra_length
        )._asdict()

    return translate


def flat_names(params: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Parameters by names such as "encoder/layer_0/self_attention/query/kernel"."""
    named: dict[str, np.ndarray] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            named |= flat_names(value, f"{prefix}{key}/")
        else:
            named[prefix + key] = np.asarray(value)
    return named


def nested(named: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat_names`."""
    params: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split("/")
        within = params
        for key in path:
            within = within.setdefault(key, {})
        within[last] = value
    return params
