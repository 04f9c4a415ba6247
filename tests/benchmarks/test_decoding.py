"""The contestants of decode.py translate with models of random parameters."""

from benchmarks.models import Sizes, draw_endless, make_translator
from benchmarks.peers.decoding import Numbers

SIZES = Sizes(
    num_layers=1, d_model=8, d_ff=8, num_heads=2, vocabulary=40, rows=9, source=7,
    target=9,
)  # fmt: skip


def test_our_translations_have_the_length_asked_for():
    model = SIZES.model(dropout=0.0, logits_bias=True)
    tokenizer = Numbers(SIZES.vocabulary)
    decoding = {"beam_size": 2, "alpha": 0.6, "extra_length": 2, "batch_tokens": 64}
    translate = make_translator(model, draw_endless(model), tokenizer, decoding)
    found = translate([tokenizer.decode(row) for row in SIZES.sentences(7, 0)])
    assert {len(line.split()) for line in found} == {SIZES.target - 1}  # without EOS
