"""benchmarks/attention.py: contestants compute the same attention, or say why not."""

import json
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from benchmarks import attention, harness
from benchmarks.peers import attentions

plain = jax.nn.dot_product_attention
SIZES = 1, 2, 16, 2, 8  # layers, rows, length, heads, size


def by_xla(*qkv, implementation, **given):
    return plain(*qkv, **given)


def by_offsets(*qkv, q_seqlen, q_offsets, kv_seqlen, kv_offsets, scale, mask_type):
    """Compute what the docstring of cuDNN's function in jax says."""

    def segments(lengths, starts):
        place, start = jnp.arange(SIZES[2])[None, None], starts[:, :-1, None]
        return (place >= start) & (place < start + lengths[..., None])

    queries, keys = segments(q_seqlen, q_offsets), segments(kv_seqlen, kv_offsets)
    mask = (queries[..., None] & keys[:, :, None]).any(1, keepdims=True)
    is_causal = mask_type == attentions.cudnn.MaskType.PADDING_CAUSAL
    return plain(*qkv, mask=mask, is_causal=is_causal, scale=scale)


@pytest.mark.filterwarnings("ignore:jax.experimental.pallas:DeprecationWarning")
@pytest.mark.parametrize("name", attentions.NAMES)
def test_contestants_mask_what_models_mask(monkeypatch, name):
    """XLA stands in for cuDNN; Pallas interprets its kernel."""
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    monkeypatch.setattr(attentions.cudnn, "dot_product_attention", by_offsets)
    found = attention.contestant(name, *SIZES)()
    if name == "Pallas":
        assert "for self-attention" in found.pop("cross")
    for errors in found.values():
        assert max(errors) < 0.02


def test_rows_have_eight_sentences_one_or_no_padding():
    for name, segments in (
        (attentions.XLA, {*range(9)}), (attentions.LENGTHS, {0, 1}),
        (attentions.FULL, {1}),
    ):  # fmt: skip
        sides = attention.draw_sides(name, 2, 16)
        assert all({*row.tolist()} == segments for row in (*sides["s"], *sides["t"]))


def test_a_contestant_that_fails_is_named_and_the_others_are_timed(monkeypatch, capsys):
    errors, why = dict.fromkeys(attention.KINDS, [1e-3] * 4), "RuntimeError: why"
    aparts = [mock.Mock(return_value=errors) for _ in attentions.NAMES]
    aparts[1].return_value = errors | {"cross": why}
    aparts[2].side_effect = RuntimeError("the process\nended with code -11")
    monkeypatch.setattr(attention, "PAUSE", 0)
    with mock.patch.object(harness, "Apart", side_effect=aparts):
        assert attention.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert f"| cross | cuDNN | {why} |" in printed
    assert "| decoder | Pallas | 0.0" in printed
    outcome = json.loads(printed.splitlines()[-1])
    without = [key for key in outcome["errors"] if key not in outcome["times"]]
    name = attentions.NAMES[2]
    assert without == [
        f"encoder | {name}",
        f"decoder | {name}",
        "cross | cuDNN",
        f"cross | {name}",
    ]
    assert outcome["errors"][f"cross | {name}"] == "ended with code -11"
