"""benchmarks/agreement.py: an accelerator's updates beside those of the CPU."""

import json
from unittest import mock

import numpy as np
import pytest

from benchmarks import agreement, harness
from benchmarks.models import SIZES


def test_rows_have_three_sentences_and_padding():
    batch = agreement.packed(SIZES["tiny"])
    for ids, segments in (
        (batch.source, batch.source_segments),
        (batch.target, batch.target_segments),
    ):
        for row in segments:
            assert sorted({*row.tolist()}) == [0, 1, 2, 3]
            lasts = row[:-1] > row[1:]
            assert lasts.sum() == 1  # padding is at the end
        np.testing.assert_array_equal(ids == 0, segments == 0)


@pytest.mark.parametrize(
    ("error", "code"), [(0.0, 0), (5e-3, 1), (1.0, 1), (np.nan, 1)]
)
def test_large_errors_and_those_that_are_no_numbers_do_not_hold(capsys, error, code):
    """5e-3 is too much for float32 at the highest precision alone."""
    found = [(np.ones(4), np.ones(2)), *[(np.ones(4) + error, np.ones(2))] * 4]
    aparts = [mock.Mock(return_value=each) for each in found]
    with mock.patch.object(harness, "Apart", side_effect=aparts):
        assert agreement.main(["--model=tiny"]) == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["holds"] == (not code)
