"""The arithmetic for accelerators: the docs show lines of its tables."""

from pathlib import Path

import pytest

from benchmarks import roofline
from jaxformer.configs import wmt_base, wmt_big

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
START = "<!-- roofline: lines that benchmarks/roofline.py prints -->\n"
BASE, BIG = roofline.MODELS


def test_page_shows_lines_that_the_script_prints_in_their_order(capsys):
    roofline.main([])
    printed = iter(capsys.readouterr().out.splitlines())
    shown = PAGE.read_text().partition(START)[2].partition("<!-- end -->")[0]
    assert shown
    for line in shown.splitlines():
        assert line in printed, line


@pytest.mark.parametrize(
    ("model", "config", "parameters"),
    [(BASE, wmt_base, "63.05"), (BIG, wmt_big, "214.17")],  # as README counts them
    ids=["base", "big"],
)
def test_models_and_batches_are_those_of_the_configs(model, config, parameters):
    values = config.get_config()
    sizes = {name: values.model[name] for name in ("d_model", "d_ff", "num_heads")}
    assert sizes.items() <= vars(model.sizes).items()
    assert values.batches.row_length == roofline.ROW
    assert values.training.tokens_per_update == roofline.TOKENS
    assert f"{model.parameters / 1e6:.2f}" == parameters
