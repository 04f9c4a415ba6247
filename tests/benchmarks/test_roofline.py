"""The arithmetic for accelerators: the docs show its tables."""

from pathlib import Path

import pytest

from benchmarks import roofline
from benchmarks.roofline import Step
from jaxformer.configs import wmt_base, wmt_big

PAGE = Path(__file__).parents[2] / "docs" / "outgrow_your_machine.md"
START = "<!-- roofline: printed by benchmarks/roofline.py -->\n"
BASE, BIG = roofline.MODELS
V5E, V5P, _, H100, _ = roofline.HARDWARE


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


def test_chips_share_heads_and_feed_forward():
    """By hand, for 8 chips: what is as wide as d_model stays, the rest is an eighth."""
    d, d_ff, layers, row = 512, 2048, 6, 256
    shared = (4 * d + 2 * d_ff) / 8
    numbers = 2 * row * (4 * d + shared) + 8 * 3 * row**2 / 8
    assert BASE.row_activations(8) == 2 * layers * numbers


def test_ring_within_a_box_and_between_boxes():
    """By hand: 8 GPUs of a box, then 8 boxes whose GPUs each reduce an eighth."""
    size = 4 * BASE.parameters
    box = 2 * 7 / 8 * size / 450e9
    network = 2 * 7 / 8 * (size / 8) / 50e9
    for data, fsdp, expected in (
        (8, 1, box),
        (64, 1, box + network),
        (8, 8, 1.5 * box + network),  # fsdp in the box: three passes there
        (1, 64, 1.5 * (box + network)),  # three passes of both
    ):
        found = roofline.communication(H100, BASE, data, fsdp)
        assert found == pytest.approx(expected)
    assert roofline.communication(V5P, BASE, 1, 1) == 0


def test_step_by_hand():
    """One row on one TPU v5e; half the share of the peak is twice the compute."""
    step = roofline.step(V5E, BASE, 1, 1, 0.4)
    assert step.compute == pytest.approx(BASE.row_flops / (0.4 * 197e12))
    moved = 40 * BASE.parameters + 2 * BASE.row_activations() + 256 * 37_000 * 16
    assert step.memory == pytest.approx(moved / 819e9)
    assert step.communication == 0
    half = roofline.step(V5E, BASE, 1, 1, 0.2)
    assert half == (pytest.approx(2 * step.compute), step.memory, 0)
    assert (Step(3, 2, 5).best, Step(3, 2, 5).worst) == (5, 8)
    assert (Step(3, 4, 1).best, Step(3, 4, 1).worst) == (4, 5)
