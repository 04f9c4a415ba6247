"""Translation as one serialized JAX program, for machines without jaxformer.

`jax.export` serializes programs as StableHLO, which later versions of JAX read. Files:

    translate.bin        the program: (parameters, source ids) -> hypotheses
    parameters.npz       the parameters by name
    sentencepiece.model  the tokeniser, or source.spm and target.spm
    example.py           text in, text out, with jax, numpy and sentencepiece

The program takes any number of sentences of up to a fixed number of pieces.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.scorer import search_translations
from jaxformer.exports.parameters import flat, nested, template, write_tokenizer
from jaxformer.models.architectures import make_model
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.system.errors import InputError
from jaxformer.tokens import Tokenizer


def write_stablehlo(
    folder: Path,
    config: Config,
    params: dict,
    tokenizer: Tokenizer,
    options: TranslateOptions,
    *,
    source_length: int,
) -> None:
    """Write the search for sources of up to `source_length` pieces into `folder`.

    Raises InputError for a tokeniser whose ids are not those of SentencePiece, and for
    more pieces than the model has positions.
    """
    if tokenizer.renumbers:
        raise InputError(
            "a StableHLO program's example reads SentencePiece models, and this run's "
            "tokeniser gives other ids to their pieces; export to another format"
        )
    named = flat(params)
    program = translation_program(config.model, options)
    (batch,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(program), platforms=("cpu", "cuda", "tpu"))(
        jax.eval_shape(lambda: named),
        jax.ShapeDtypeStruct((batch, source_length), np.int32),
    )
    (folder / "translate.bin").write_bytes(exported.serialize())
    np.savez(folder / "parameters.npz", **named)
    files = write_tokenizer(folder, tokenizer)
    example = template("stablehlo.py.txt").substitute(
        files, length=source_length, tag=json.dumps(config.data.only_tag)
    )
    (folder / "example.py").write_text(example, encoding="utf-8")


def translation_program(config: TransformerConfig, options: TranslateOptions) -> Any:
    """Return (parameters by name, source int32 [B, S]) -> `SearchResult` as a dict."""
    # One program for all platforms: without the kernel that only one of them has.
    plain = dataclasses.replace(config, fused_attention=False)

    def translate(named: Mapping[str, jax.Array], source: jax.Array) -> dict:
        params = nested(named)
        embedding = params["embedding"]
        model = make_model(
            plain,
            vocab_size=len(embedding),
            source_vocab_size=len(params.get("source_embedding", embedding)),
            rematerialise=False,
            activation_dtype=plain.dtype,
        )
        return search_translations(
            [model], [params], source,
            options=options, extra_length=options.extra_length,
        )._asdict()  # fmt: skip

    return translate
