"""Bodies of requests: whatever they hold, they are read or refused."""

import contextlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxformer.errors import InputError
from jaxformer.serving.bodies import read_attention, read_translate

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
BODIES = st.binary() | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("text", "n_best", "prefix", "source"), VALUES)
).map(json.dumps).map(str.encode)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON in UTF-8"),
        (b'{"text": "\xff"}', "not JSON in UTF-8 .*position 10"),
        ('{"text": "a"}'.encode("utf-16"), "not JSON in UTF-8"),
        (b'{"text": "\\ud800"}', "not JSON in UTF-8 .*surrogates"),
        (b'["a"]', "has to be a JSON object"),
        (b"{}", '"text" is missing'),
        (b'{"text": null}', '"text" has to be a string'),
        (b'{"text": ["a", 1]}', '"text" has to be a string'),
        (b'{"txt": "a"}', "unknown key 'txt'; the keys are text, n_best, prefix"),
        (b'{"text": "a", "n_best": 0}', '"n_best" has to be an integer from 1 to 4'),
        (b'{"text": "a", "n_best": 5}', "from 1 to 4"),
        (b'{"text": "a", "n_best": true}', '"n_best" has to be'),
        (b'{"text": "a", "n_best": 1.0}', '"n_best" has to be'),
        (b'{"text": "a", "prefix": ["b"]}', '"prefix" has to be'),
        (b'{"text": ["a"], "prefix": []}', '"prefix" has to be'),
    ],
)
def test_a_bad_body_is_refused(body, error):
    with pytest.raises(InputError, match=error):
        read_translate(body, max_n_best=4)


@settings(max_examples=50, deadline=None)
@given(BODIES)
@example(b'{"source": "a", "target": 1}')
def test_any_body_is_read_or_refused(body):
    with contextlib.suppress(InputError):
        read_translate(body, max_n_best=4)
    with pytest.raises(InputError):  # it has no target
        read_attention(body)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"))), st.integers(1, 4))
def test_a_good_body_is_read_as_it_was_written(sentences, n_best):
    body = json.dumps({"text": sentences, "n_best": n_best}).encode()
    pairs = [(sentence, "") for sentence in sentences]
    assert read_translate(body, max_n_best=4) == (pairs, n_best)
