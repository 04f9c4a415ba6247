"""The contestants of decode.py and engine.py, with models of random parameters."""

import numpy as np
import pytest

from benchmarks import engine
from benchmarks.models import Sizes, draw_endless, make_translator
from benchmarks.peers.decoding import Numbers
from benchmarks.peers.static_batches import StaticBatches
from jaxformer.batch import EOS

SIZES = Sizes(
    num_layers=1, d_model=8, d_ff=8, num_heads=2, vocabulary=40, rows=9, source=7,
    target=9,
)  # fmt: skip
DECODING = {"beam_size": 2, "alpha": 0.6, "extra_length": 2, "batch_tokens": 64}


@pytest.fixture(scope="module")
def model():
    """A model that never says EOS, its parameters and its tokeniser."""
    model = SIZES.model(dropout=0.0, logits_bias=True)
    return model, draw_endless(model), Numbers(SIZES.vocabulary)


def test_our_translations_have_the_length_asked_for(model):
    lines = [model[2].decode(row) for row in SIZES.sentences(SIZES.source, 0)]
    found = make_translator(*model, DECODING)(lines)
    assert {len(line.split()) for line in found} == {SIZES.target - 1}  # without EOS


def test_static_batches_find_what_the_engine_finds(model):
    """Sources and translations differ in length; 64 entries are four sentences."""
    network, params, tokenizer = model
    rows = SIZES.sentences(SIZES.source, 0)
    lines = [tokenizer.decode([*row[: 1 + i % 6], EOS]) for i, row in enumerate(rows)]
    bias = params["logits_bias"].copy()
    bias[EOS] = 1.0
    ending = network, {**params, "logits_bias": bias}, tokenizer
    ours = make_translator(*ending, DECODING)(lines)
    assert len({len(line.split()) for line in ours}) > 2
    static = StaticBatches(*ending, DECODING, rows=8)
    assert static(lines) == ours
    for line in lines:
        static.submit(line, lambda _: None)
    assert [static.advance() for _ in range(3)] == [True, True, False]


def test_latency_is_from_arrival_to_translation(monkeypatch):
    """The clock moves by sleeping, and by a second for each line."""
    now, waiting = [100.0], []

    class Slow:
        def submit(self, line, done):
            waiting.append((line, done))

        def advance(self):
            now[0] += 1.0
            line, done = waiting.pop(0)
            done(line)
            return bool(waiting)

    monkeypatch.setattr(
        engine.time, "sleep", lambda s: now.__setitem__(0, now[0] + s + 1e-9)
    )
    rare, crowded = (
        engine.latencies(Slow(), ["a"] * 50, rate, 0, lambda: now[0])
        for rate in (0.001, 1000.0)
    )
    np.testing.assert_allclose(np.median(rare), 1.0, atol=1e-6)
    np.testing.assert_allclose(crowded, np.arange(1, 51), atol=0.1)
