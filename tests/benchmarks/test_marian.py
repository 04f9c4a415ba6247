"""Marian as a peer of the benchmarks."""

import dataclasses
import math
import time

import pytest

from benchmarks.models import SIZES
from benchmarks.peers import marian

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def needs_marian():
    if not marian.is_installed():
        pytest.skip("the package pymarian is not installed")


def test_it_makes_as_many_updates_as_it_is_asked_for_and_then_stands_still(tmp_path):
    """From the second update on; its loss is that of random parameters."""
    sizes = SIZES["tiny"]
    make = marian.marian_updates(tmp_path, sizes, threads=1)
    losses = [make(1), make(2)]
    time.sleep(0.3)
    losses.append(make(1))
    assert max(losses) < 2 * math.log(sizes.vocabulary)
    assert len({*losses}) == 3


@pytest.mark.parametrize("beam_size", [1, 4])
def test_its_translations_have_the_length_that_is_asked_for(tmp_path, beam_size):
    sizes = dataclasses.replace(SIZES["tiny"], target=12)
    given = tmp_path / "model", sizes, beam_size
    translate = marian.marian_translator(*given, threads=2)
    rows = sizes.sentences(sizes.source, 1)[:, :-1].tolist()
    lines = [" ".join(map(str, row)) for row in rows]
    found = translate(lines)
    assert [len(line.split()) for line in found] == [12] * len(lines)
    assert translate(lines) == found
    assert len({*found}) > 1
