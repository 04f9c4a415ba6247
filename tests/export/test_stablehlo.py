"""The serialized program holds for all platforms; the command tests run it."""

from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.export.parameters import flat
from jaxformer.export.stablehlo import translation_program, write_stablehlo
from jaxformer.models import attention
from tests.export.conftest import OPTIONS


def test_two_sentencepiece_models_are_refused(tmp_path):
    tokenizer = mock.Mock(source_model=b"one", target_model=b"another")
    with pytest.raises(InputError, match="reads one SentencePiece model"):
        write_stablehlo(tmp_path, None, {}, tokenizer, OPTIONS, source_length=8)


def test_the_program_has_no_kernel_of_one_platform(make_model):
    """Even if it is exported where the model may use the kernel."""
    model, params = make_model(dtype="bfloat16", fused_attention=True)
    program = translation_program(model.config, OPTIONS)
    with (
        mock.patch.object(attention, "cuda_capability", return_value=(9, 0)),
        mock.patch.object(jax, "device_count", return_value=1),
        mock.patch.object(jax.nn, "dot_product_attention") as kernel,
    ):
        jax.eval_shape(program, flat(params), np.zeros((1, 8), np.int32))
    kernel.assert_not_called()
