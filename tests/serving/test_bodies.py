"""Bodies of requests are read or refused."""

import pytest

from jaxformer.serving.app import read_attention, read_translate
from jaxformer.system.errors import InputError


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON in UTF-8"),
        (b'{"text": "\xff"}', "not JSON in UTF-8 .*position 10"),
        ('{"text": "a"}'.encode("utf-16"), "not JSON in UTF-8"),
        (b'{"text": "\\ud800"}', "not JSON in UTF-8 .*surrogates"),
        (b'["a"]', "has to be a JSON object"),
        (b"{}", '"text" has to be a string'),
        (b'{"text": ["a", 1]}', '"text" has to be a string'),
        (b'{"txt": "a"}', "unknown key 'txt'; the keys are text, n_best, prefix, phr"),
        (b'{"text": "a", "n_best": 5}', '"n_best" has to be an integer from 1 to 4'),
        (b'{"text": "a", "n_best": 0}', '"n_best" has to be an integer from 1 to 4'),
        (b'{"text": "a", "n_best": true}', '"n_best" has to be'),
        (b'{"text": "a", "prefix": ["b"]}', '"prefix" has to be'),
        (b'{"text": ["a"], "prefix": []}', '"prefix" has to be'),
        (b'{"text": ["a"], "prefix": [{}]}', '"prefix" has to be'),
        (b'{"text": "a", "tag": ">>fr<<"}', "not in the vocabulary; use one of >>de<<"),
        (b'{"text": "a", "tag": []}', '"tag" is not in the vocabulary'),
        (b'{"text": "a", "tag": null}', '"tag" is not in the vocabulary'),
        (b'{"text": "a", "sentences": 1}', '"sentences" has to be true or false'),
        (b'{"text": "a", "phrases": "b"}', '"phrases" has to be'),
        (b'{"text": "a", "phrases": [["b"]]}', '"phrases" has to be'),
        (b'{"text": ["a"], "phrases": ["b"]}', '"phrases" has to be'),
        (b'{"text": ["a"], "phrases": []}', '"phrases" has to be'),
        (b'{"text": ["a"], "phrases": [[1]]}', '"phrases" has to be'),
        (b'{"text": ["a"], "phrases": null}', '"phrases" has to be'),
    ],
)
def test_a_bad_body_is_refused(body, error):
    with pytest.raises(InputError, match=error):
        read_translate(body, max_n_best=4, tags=(">>de<<",))


@pytest.mark.parametrize("body", [b"{}", b'{"source": "a", "target": 1}', b"[]", b"1"])
def test_a_pair_is_two_strings(body):
    with pytest.raises(InputError, match="has to be"):
        read_attention(body)
