"""The serialized program finds what the search finds."""

import functools
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.scorer import search_translations
from jaxformer.exports.parameters import flat
from jaxformer.exports.stablehlo import translation_program, write_stablehlo
from jaxformer.models import attention
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS
from tests.exports.conftest import make_batch

OPTIONS = TranslateOptions(beam_size=2, alpha=0.6, extra_length=5, batch_tokens=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_window": 4},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                {"positions": "relative", "relative_distance": 2},
                {"encoder_projected_keys": 3},
                {
                    "attention_window": 4, "encoder_global_positions": 1,
                    "positions": "rotary",
                },
            )
        ),
    ],
)  # fmt: skip
def test_the_program_finds_what_the_search_finds(changes, make_model, words, tmp_path):
    """From the written files alone, whose batch size is not fixed."""
    model, params = make_model(**changes, layers=1, logits_bias=True)
    params["logits_bias"][EOS] = 5.0  # so that some translations end
    config = mock.Mock(model=model.config, **{"data.only_tag": ""})
    write_stablehlo(tmp_path, config, params, words, OPTIONS, source_length=8)
    program = jax.export.deserialize((tmp_path / "translate.bin").read_bytes())
    draw = np.random.default_rng(0)
    ids = [[*draw.integers(EOS + 1, 40, n), EOS] for n in (*range(1, 8), 2)]
    source = make_batch(ids, ids).source
    found = jax.jit(program.call)(dict(np.load(tmp_path / "parameters.npz")), source)
    search = functools.partial(
        search_translations, [model], options=OPTIONS, extra_length=5
    )
    expected = jax.jit(search)([params], source)
    assert len(np.unique(expected.lengths)) > 2
    np.testing.assert_array_equal(found["tokens"], expected.tokens)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-4)


def test_positions_bound_sources_and_hypotheses(make_model, words, tmp_path):
    model, params = make_model(
        positions="learned", max_positions=8, layers=1, logits_bias=True
    )
    params["logits_bias"][EOS] = -50.0  # no translation ends by itself
    config = mock.Mock(model=model.config, **{"data.only_tag": ""})
    with pytest.raises(InputError, match=r"9 pieces exceed model\.max_positions=8"):
        write_stablehlo(tmp_path, config, params, words, OPTIONS, source_length=9)
    program = jax.jit(translation_program(model.config, OPTIONS))
    found = program(flat(params), np.array([[5, 6, 7, 8, 9, 10, 11, EOS]]))
    assert found["tokens"].shape[-1] == 8
    assert (found["lengths"] == 8).all()


def test_a_tokeniser_that_renumbers_pieces_is_refused(tmp_path):
    tokenizer = mock.Mock(renumbers=True)
    with pytest.raises(InputError, match="gives other ids to their pieces"):
        write_stablehlo(tmp_path, None, {}, tokenizer, OPTIONS, source_length=8)


def test_the_program_has_no_kernel_of_one_platform(make_model):
    """Even if it is exported where the model may use the kernel."""
    model, params = make_model(dtype="bfloat16", fused_attention=True)
    program = translation_program(model.config, OPTIONS)
    with (
        mock.patch.object(attention, "fused_attention_fits", return_value=True),
        mock.patch.object(attention, "fused_attention") as kernel,
    ):
        jax.eval_shape(program, flat(params), np.zeros((1, 8), np.int32))
    kernel.assert_not_called()
