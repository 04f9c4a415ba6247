"""Published results: every row is a config of ours under our scorers."""

import pytest

from jaxformer import published
from jaxformer.config_files import read_config_file
from jaxformer.configs import table3
from jaxformer.evaluation.metrics import SCORERS


def test_a_row_is_a_config_of_its_direction_under_our_scorers():
    assert list(published.TABLE3) == [f"table3/{name}" for name in table3.ROWS]
    for name in published.ROWS:
        row = published.row(name)
        data = read_config_file(row.config)["data"]
        direction = row.test.split()[1]
        assert f"{data['source_language']}-{data['target_language']}" == direction, name
        scorers = {figure.scorer for figure in row.figures}
        assert scorers <= {*SCORERS, published.PERPLEXITY}, name
        assert row.differs, name


def test_the_differences_between_rows_have_the_sign_of_the_paper():
    """Section 6.2: one head costs 0.9 BLEU; no smoothing costs BLEU, not perplexity."""
    base, one_head, plain = (
        [figure.value for figure in published.row(f"table3/{name}").figures]
        for name in ("base", "A_h1", "D_ls0.0")
    )
    assert base[1] - one_head[1] == pytest.approx(0.9)
    assert (plain[0] < base[0], plain[1] < base[1]) == (True, True)
