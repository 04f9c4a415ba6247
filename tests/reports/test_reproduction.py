"""What makes our run another experiment than a published one."""

import pytest

from jaxformer.reports.reproduction import changed_values, differences, measure_budget

THEIRS = {
    "data": {"directory": ""},
    "training": {"steps": 100, "average": 5, "save_every": 10},
    "optimizer": {"warmup_steps": 40},
    "mesh": {"data": -1},
}


@pytest.mark.parametrize(
    ("section", "ours", "changed"),
    [
        ("data", {"directory": "x"}, []),
        ("training", {**THEIRS["training"], "steps": 5}, []),
        ("mesh", {"data": 2}, []),
        (
            "optimizer",
            {"warmup_steps": 2},
            ["optimizer.warmup_steps=2, the row has 40"],
        ),
    ],
)
def test_only_values_that_change_what_is_learnt_are_named(section, ours, changed):
    assert changed_values({**THEIRS, section: ours}, THEIRS) == changed


@pytest.mark.parametrize("steps", [100, 50])
def test_a_smaller_budget_is_the_first_difference(steps):
    ours = {**THEIRS, "training": {**THEIRS["training"], "steps": steps}}
    budget = measure_budget(ours, THEIRS)
    assert budget["share_of_updates"] == steps / 100
    found = differences("table3/E", budget, ["--split=dev"])
    text = "budget: 50 of 100 updates (50 %); checkpoints averaged: 5, 10 updates apart"
    assert (found[0] == text) == (steps == 50)
    assert "config: --split=dev" in found
    assert any(each.startswith("perplexity: ") for each in found)
