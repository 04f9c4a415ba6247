"""The serialized program says what the search says, without jaxformer beside it."""

import subprocess
import sys
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer.batch import EOS, PAD
from jaxformer.data.tokenizer import train_tokenizer
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import search_translations
from jaxformer.export.stablehlo import (
    flat_names,
    nested,
    translation_program,
    write_stablehlo,
)
from jaxformer.models import attention

OPTIONS = SearchOptions(beam_size=3, alpha=0.6)
LENGTH = 8


@pytest.fixture(scope="module", params=[None, 4])
def model_and_params(request, make_model):
    return make_model(attention_window=request.param)


@pytest.fixture(scope="module")
def written(tmp_path_factory, model_and_params):
    """A folder with the program of a small model."""
    model, params = model_and_params
    folder = tmp_path_factory.mktemp("stablehlo")
    write_stablehlo(
        folder, model.config, params, b"a model", options=OPTIONS, extra_length=5,
        source_length=LENGTH,
    )  # fmt: skip
    return folder


def sources(rows: int) -> np.ndarray:
    draw = np.random.default_rng(rows)
    source = np.full((rows, LENGTH), PAD, np.int32)
    for row in source:
        n = draw.integers(1, LENGTH)
        row[:n] = draw.integers(EOS + 1, 40, n)
        row[n] = EOS
    return source


@pytest.mark.parametrize("rows", [1, 5])
def test_any_number_of_rows_gives_what_the_search_gives(
    written, model_and_params, rows
):
    model, params = model_and_params
    program = jax.export.deserialize(
        bytearray((written / "translate.bin").read_bytes())
    )
    named = dict(np.load(written / "parameters.npz"))
    found = jax.jit(program.call)(named, sources(rows))
    expected = search_translations(
        [model], [params], sources(rows), options=OPTIONS, extra_length=5
    )
    np.testing.assert_array_equal(found["tokens"], expected.tokens)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-4)


def test_the_program_has_no_kernel_of_one_platform(make_model):
    """Though made on a card whose kernel takes what this model may give it."""
    model, params = make_model(dtype="bfloat16", fused_attention=True)
    program = translation_program(model.config, options=OPTIONS, extra_length=5)
    arguments = flat_names(params), np.zeros((1, LENGTH), np.int32)
    with (
        mock.patch.object(attention, "cuda_capability", return_value=(9, 0)),
        mock.patch.object(jax, "device_count", return_value=1),
        mock.patch.object(attention, "fused_attention") as kernel,
    ):
        jax.eval_shape(program, *arguments)
    kernel.assert_not_called()


def test_names_and_nesting_are_inverse(model_and_params):
    _, params = model_and_params
    named = flat_names(params)
    assert "encoder/layer_0/self_attention/query/kernel" in named
    assert jax.tree.structure(nested(named)) == jax.tree.structure(params)


@pytest.mark.slow
def test_the_example_turns_lines_into_lines(tmp_path, make_model):
    tokenizer = train_tokenizer(
        ["a b c d", "b a d c", "c c a b"] * 40, tmp_path / "tokenizer.model",
        vocab_size=12, character_coverage=1.0, max_sentences=1000, seed=0,
    )  # fmt: skip
    model, params = make_model(vocab_size=tokenizer.vocab_size)
    write_stablehlo(
        tmp_path, model.config, params, tokenizer.source_model, options=OPTIONS,
        extra_length=5, source_length=LENGTH,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "example.py")],
        input="a b\n\nb\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ids = tokenizer.encode(["a b", "b"])
    assert done.stdout.split("\n")[1] == ""
    for line, source in zip((0, 2), ids, strict=True):
        padded = np.full((1, LENGTH), PAD, np.int32)
        padded[0, : len(source)] = source
        found = search_translations(
            [model], [params], padded, options=OPTIONS, extra_length=5
        )
        expected = tokenizer.decode(np.asarray(found.tokens)[0, 0].tolist())
        assert done.stdout.split("\n")[line] == expected
