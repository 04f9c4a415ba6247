"""Bodies of requests: whatever they hold, they are read or refused."""

import functools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import InputError
from jaxformer.serving.bodies import read_pair, read_translate

LIMITS = {"max_sentences": 3, "most_candidates": 4}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
BODY = st.binary() | ANYTHING.map(json.dumps).map(str.encode) | st.fixed_dictionaries(
    {}, optional={name: ANYTHING for name in ("text", "n_best", "prefix", "source")}
).map(json.dumps).map(str.encode)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(BODY)
def test_a_body_is_read_or_refused_in_a_sentence(body):
    complaints = []
    for read in (read_pair, functools.partial(read_translate, **LIMITS)):
        try:
            read(body)
        except InputError as error:
            complaints.append(str(error))
    assert not any("\n" in each for each in complaints)
    assert "".join(complaints).encode()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8")), max_size=3),
    st.integers(1, 4),
)
def test_a_good_body_is_read_as_it_was_written(sentences, n_best):
    body = json.dumps({"text": sentences, "n_best": n_best}).encode()
    asked = read_translate(body, **LIMITS)
    assert asked == (sentences, [""] * len(sentences), n_best)
