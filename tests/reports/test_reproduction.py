"""What makes our run another experiment than a published one."""

from jaxformer.reports.reproduction import changed_values, differences

THEIRS = {
    "data": {"directory": ""},
    "training": {"steps": 100},
    "optimizer": {"warmup_steps": 40},
    "mesh": {"data": -1},
}


def test_only_values_that_change_what_is_learned_are_named():
    ours = {"data": {"directory": "x"}, "training": {"steps": 50}, "mesh": {"data": 2}}
    assert changed_values(THEIRS | ours, THEIRS) == []
    ours["optimizer"] = {"warmup_steps": 2}
    changed = ["optimizer.warmup_steps=2, the row has 40"]
    assert changed_values(THEIRS | ours, THEIRS) == changed


def test_a_smaller_budget_is_the_first_difference():
    budget = {"published_steps": 100, "share_of_updates": 0.5}
    budget |= {"averaged_checkpoints": 5, "updates_between_them": 10}
    found = differences("table3/E", {"steps": 100, **budget}, ["--split=dev"])
    assert found[0] == "config: --split=dev"
    assert any(each.startswith("perplexity: ") for each in found)
    text = "budget: 50 of 100 updates (50 %); checkpoints averaged: 5, 10 updates apart"
    shorter = differences("table3/E", {"steps": 50, **budget}, ["--split=dev"])
    assert shorter == [text, *found]
