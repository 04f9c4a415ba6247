"""Published results: every row is a config of ours under our scorers."""

import pytest

from jaxformer.configs import table3
from jaxformer.evaluation import published
from jaxformer.evaluation.metrics import SCORERS
from jaxformer.runs.config_files import read_config_file


@pytest.mark.parametrize("name", published.ROWS)
def test_a_row_is_a_config_of_its_direction_under_our_scorers(name):
    row = published.row(name)
    data = read_config_file(row.config)["data"]
    direction = row.test.split()[1]
    assert f"{data['source_language']}-{data['target_language']}" == direction
    scorers = {figure.scorer for figure in row.figures}
    assert scorers <= {*SCORERS, published.PERPLEXITY}


def test_table_3_is_complete_and_differs_as_the_paper_says():
    """Section 6.2: one head costs 0.9 BLEU; no smoothing costs BLEU, not perplexity."""
    base, one_head, plain = (
        [figure.value for figure in published.row(f"table3/{name}").figures]
        for name in ("base", "A_h1", "D_ls0.0")
    )
    assert base[1] - one_head[1] == pytest.approx(0.9)
    assert plain < base
    assert plain[1] < base[1]
    assert published.ROWS.keys() >= {f"table3/{name}" for name in table3.ROWS}
