"""What makes our run another experiment than a published one."""

from jaxformer.reports.reproduction import changed_values, differences, measure_budget

THEIRS = {
    "data": {"directory": ""},
    "training": {"steps": 100, "average": 5, "save_every": 10},
    "optimizer": {"warmup_steps": 40},
    "mesh": {"data": -1},
}
TRAINING = {**THEIRS["training"], "steps": 50}


def test_only_values_that_change_what_is_learned_are_named():
    ours = {"data": {"directory": "x"}, "training": TRAINING, "mesh": {"data": 2}}
    assert changed_values(THEIRS | ours, THEIRS) == []
    ours["optimizer"] = {"warmup_steps": 2}
    changed = ["optimizer.warmup_steps=2, the row has 40"]
    assert changed_values(THEIRS | ours, THEIRS) == changed


def test_a_smaller_budget_is_the_first_difference():
    text = "budget: 50 of 100 updates (50 %); checkpoints averaged: 5, 10 updates apart"
    for training in TRAINING, THEIRS["training"]:
        budget = measure_budget({**THEIRS, "training": training}, THEIRS)
        assert budget["share_of_updates"] == training["steps"] / 100
        found = differences("table3/E", budget, ["--split=dev"])
        assert (found[0] == text) == (training is TRAINING)
        assert "config: --split=dev" in found
        assert any(each.startswith("perplexity: ") for each in found)
