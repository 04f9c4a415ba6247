"""Bodies of requests are read or refused."""

import pytest

from jaxformer.serving.bodies import (
    read_attention,
    read_form,
    read_json,
    read_translate,
)
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
        read_translate(read_json(body), max_n_best=4, tags=(">>de<<",))


@pytest.mark.parametrize("body", [b"{}", b'{"source": "a", "target": 1}', b"[]", b"1"])
def test_a_pair_is_two_strings(body):
    with pytest.raises(InputError, match="has to be"):
        read_attention(read_json(body))


def test_a_form_is_text_and_its_body_wins():
    read = read_form(b"q=a+%C3%A4%0D%0Ab&target=", "q=c&source=en")
    assert read == {"q": "a \u00e4\nb", "target": "", "source": "en"}
    for body in (b"q=\xff", b"q=%FF"):
        with pytest.raises(InputError, match="not a form in UTF-8"):
            read_form(body, "")
    for form in ((b"q=a&q=b", ""), (b"", "q=a&q=a")):
        with pytest.raises(InputError, match="the form has 'q' twice"):
            read_form(*form)
    with pytest.raises(InputError, match="for JSON add the header content-type"):
        read_form(b' {"q": "a"}', "")
