"""The arithmetic of the accelerator tables, and that the page shows what it says."""

import importlib.util
import sys
from pathlib import Path

import pytest

from jaxformer.config import Config
from jaxformer.configs import wmt_base, wmt_big
from jaxformer.models.architectures import config_type, make_model

ROOT = Path(__file__).parents[2]
START = "<!-- roofline: printed by benchmarks/roofline.py -->\n"
END = "\n<!-- end -->"


def load():
    """benchmarks/roofline.py, which is a script and in no package."""
    path = ROOT / "benchmarks" / "roofline.py"
    spec = importlib.util.spec_from_file_location("roofline", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["roofline"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


roofline = load()
BASE, BIG = roofline.MODELS
V5E, V5P, V6E, H100, H200 = roofline.HARDWARE
CONFIGS = ((BASE, wmt_base), (BIG, wmt_big))


def test_page_shows_what_the_script_prints(capsys, monkeypatch):
    """Write it between the marks: the message of a failure says how."""
    monkeypatch.setattr(sys, "argv", ["roofline.py"])
    roofline.main()
    page = (ROOT / "docs" / "outgrow_your_machine.md").read_text()
    shown = page.partition(START)[2].partition(END)[0]
    assert shown == capsys.readouterr().out, "put the script's output between the marks"


@pytest.mark.parametrize(("model", "config"), CONFIGS, ids=["base", "big"])
def test_work_is_what_check_counts(model, config):
    """Operations and activations of a row, as --mode=check counts them."""
    values = config.get_config()
    section = Config.parse(values.to_dict(), config_type).model
    checked = make_model(
        section, vocab_size=values.data.vocab_size, rematerialise=False
    )
    row = (1, roofline.ROW, roofline.ROW)
    assert values.batches.row_length == roofline.ROW
    assert values.training.tokens_per_update == roofline.TOKENS
    assert model.row_flops == checked.flops(*row)
    kept = checked.activations(*row) * roofline.BFLOAT16
    assert model.row_activations() == kept


def test_parameters():
    """The counts that README prints."""
    counts = [f"{model.parameters / 1e6:.2f}" for model in roofline.MODELS]
    assert counts == ["63.05", "214.17"]


def test_ring_within_a_box_and_between_boxes():
    """By hand: 8 GPUs of a box, then 8 boxes whose GPUs each reduce an eighth."""
    size = 4 * BASE.parameters
    box = 2 * 7 / 8 * size / 450e9
    assert roofline.communication(H100, BASE, 8, 1) == pytest.approx(box)
    network = 2 * 7 / 8 * (size / 8) / 50e9
    assert roofline.communication(H100, BASE, 64, 1) == pytest.approx(box + network)
    # fsdp in the box: three passes there, and the same over the network
    both = roofline.communication(H100, BASE, 8, 8)
    assert both == pytest.approx(1.5 * box + network)
    # fsdp over everything: three passes of both
    everywhere = roofline.communication(H100, BASE, 1, 64)
    assert everywhere == pytest.approx(1.5 * (box + network))
    assert roofline.communication(V5P, BASE, 1, 1) == 0


def test_step_by_hand():
    """One row on one TPU v5e."""
    step = roofline.step(V5E, BASE, 1)
    assert step.compute == pytest.approx(BASE.row_flops / (0.4 * 197e12))
    logits = 256 * 37_000 * 16
    moved = 40 * BASE.parameters + 2 * BASE.row_activations() + logits
    assert step.memory == pytest.approx(moved / 819e9)
    assert step.communication == 0
    assert step.best == step.worst == max(step.compute, step.memory)


def test_overlap_never_costs():
    """The step with all overlapping is the shorter, whatever the hardware."""
    for hardware in roofline.HARDWARE:
        for chips in roofline.CHIPS:
            step = roofline.step(hardware, BIG, 2, data=chips)
            assert max(step.compute, step.communication) <= step.best <= step.worst


def test_rows_run_out():
    """98 rows, shared by whole rows."""
    rows = [roofline.rows_per_chip(chips) for chips in roofline.CHIPS]
    assert rows == [98, 13, 2, 1, 1]


@pytest.mark.parametrize("hardware", roofline.HARDWARE, ids=lambda each: each.name)
def test_where_communication_dominates(hardware):
    """At the number found it does, at half of it it does not."""
    chips = roofline.first_dominated(hardware, BASE, weak=False, share=0.4)

    def dominated(chips: int) -> bool:
        rows = roofline.rows_per_chip(chips)
        step = roofline.step(hardware, BASE, rows, data=chips)
        return step.communication > step.compute

    assert dominated(chips)
    assert not dominated(chips // 2)
    assert roofline.first_dominated(hardware, BASE, weak=True, share=0.4) is None


def test_share_is_a_parameter():
    """Half the share is twice the compute, and the text says it."""
    full, half = (roofline.step(H200, BIG, 13, share=share) for share in (0.4, 0.2))
    assert half.compute == pytest.approx(2 * full.compute)
    assert half.memory == full.memory
    assert "at 20 % of the peak: an assumption" in roofline.report(0.2)
