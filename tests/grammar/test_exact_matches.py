"""Exact matches of translations, by phenomenon."""

import logging
from types import SimpleNamespace

import pytest

from jaxformer import grammar
from jaxformer.runs.validation import report_grammar


def data_of(**values):
    own = SimpleNamespace(test="3", pairs_of=lambda _: 3, seed=0, tag=">>5<<", **values)
    parts = {"other": SimpleNamespace(corpus="tsv", direction="en-de"), "own": own}
    parts = {name: SimpleNamespace(data=part) for name, part in parts.items()}
    config = SimpleNamespace(data=SimpleNamespace(parts=parts))
    return SimpleNamespace(run=SimpleNamespace(config=config))


@pytest.mark.parametrize("direction", ["en-de", "de-en"])
def test_they_are_counted_by_phenomenon(direction, monkeypatch, caplog):
    names = (("dative", "plural"), ("plural",), ())
    pairs = [grammar.Pair("A", "a", each) for each in names]
    monkeypatch.setattr(grammar, "generate", lambda *_: pairs)

    def translate(sources):
        assert sources == [">>5<< A"] * 3
        return ["a", "x", "a"]

    with caplog.at_level(logging.INFO):
        job = data_of(corpus="builtin:grammar", direction=direction)
        report_grammar(job, translate)
    expected = [
        "test: 2 of 3 translations exactly right (66.7 %)",
        "  dative                   1 of     1 (100.0 %)",
        "  plural                   1 of     2 (50.0 %)",
    ]
    assert caplog.messages[:3] == (expected if direction == "en-de" else [])
