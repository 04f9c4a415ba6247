"""The arithmetic for accelerators: the docs show its tables."""

from pathlib import Path

import pytest

from benchmarks import roofline
from jaxformer.configs import wmt_base, wmt_big

PAGE = Path(__file__).parents[2] / "docs" / "outgrow_your_machine.md"
START = "<!-- roofline: printed by benchmarks/roofline.py -->\n"
BASE, BIG = roofline.MODELS


def test_page_shows_what_the_script_prints(capsys):
    """Write it between the marks: the message of a failure says how."""
    roofline.main([])
    shown = PAGE.read_text().partition(START)[2].partition("<!-- end -->")[0]
    assert shown == capsys.readouterr().out, "put the script's output between the marks"


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
