"""The arithmetic for accelerators: its work is what a run counts; the page shows it."""

from pathlib import Path

import pytest

from benchmarks import chips, roofline
from jaxformer.config import Config
from jaxformer.configs import wmt_base, wmt_big
from jaxformer.models.architectures import config_type, make_model

PAGE = Path(__file__).parents[2] / "docs" / "outgrow_your_machine.md"
START = "<!-- roofline: printed by benchmarks/roofline.py -->\n"
END = "\n<!-- end -->"
BASE, BIG = chips.MODELS
V5E, V5P, V6E, H100, H200 = chips.HARDWARE


def test_page_shows_what_the_script_prints(capsys):
    """Write it between the marks: the message of a failure says how."""
    roofline.main([])
    shown = PAGE.read_text().partition(START)[2].partition(END)[0]
    assert shown == capsys.readouterr().out, "put the script's output between the marks"


@pytest.mark.parametrize(
    ("model", "config", "parameters"),
    [(BASE, wmt_base, "63.05"), (BIG, wmt_big, "214.17")],  # as README counts them
    ids=["base", "big"],
)
def test_work_is_what_check_counts(model, config, parameters):
    """Operations and activations of a row, as --mode=check counts them."""
    values = config.get_config()
    section = Config.parse(values.to_dict(), config_type).model
    checked = make_model(
        section, vocab_size=values.data.vocab_size, rematerialise=False
    )
    row = (1, chips.ROW, chips.ROW)
    assert values.batches.row_length == chips.ROW
    assert values.training.tokens_per_update == chips.TOKENS
    assert f"{model.parameters / 1e6:.2f}" == parameters
    assert model.row_flops == checked.flops(*row)
    kept = checked.activations(*row) * chips.BFLOAT16
    assert model.row_activations() == kept


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
        found = chips.communication(H100, BASE, data, fsdp)
        assert found == pytest.approx(expected)
    assert chips.communication(V5P, BASE, 1, 1) == 0


def test_step_by_hand():
    """One row on one TPU v5e; half the share of the peak is twice the compute."""
    step = chips.step(V5E, BASE, 1, 1, 0.4)
    assert step.compute == pytest.approx(BASE.row_flops / (0.4 * 197e12))
    moved = 40 * BASE.parameters + 2 * BASE.row_activations() + 256 * 37_000 * 16
    assert step.memory == pytest.approx(moved / 819e9)
    assert step.communication == 0
    half = chips.step(V5E, BASE, 1, 1, 0.2)
    assert half == (pytest.approx(2 * step.compute), step.memory, 0)
    assert "at 20 % of the peak: an assumption" in roofline.report(0.2)


def test_overlap_hides_the_shorter_times():
    for each, best, worst in (((3, 2, 5), 5, 8), ((3, 4, 1), 4, 5)):
        assert (chips.Step(*each).best, chips.Step(*each).worst) == (best, worst)


def test_rows_run_out():
    """98 rows, shared by whole rows."""
    assert [chips.rows_per_chip(n) for n in roofline.COUNTS] == [98, 13, 2, 1, 1]


@pytest.mark.parametrize("hardware", chips.HARDWARE, ids=lambda each: each.name)
def test_where_communication_dominates(hardware):
    """At the number found it does, at half of it it does not."""
    found = chips.first_dominated(hardware, BASE, 0.4, weak=False)
    for count, is_dominated in ((found, True), (found // 2, False)):
        rows = chips.rows_per_chip(count)
        step = chips.step(hardware, BASE, rows, count, 0.4)
        assert (step.communication > step.compute) == is_dominated
    assert chips.first_dominated(hardware, BASE, 0.4, weak=True) is None
