"""What makes our run another experiment than a published one."""

import pytest

from jaxformer.reports.reproduction import changed_values, differences, measure_budget

THEIRS = {
    "data": {"directory": ""},
    "training": {
        "steps": 100,
        "tokens_per_update": 768,
        "average": 5,
        "save_every": 10,
    },
    "optimizer": {"warmup_steps": 40},
    "mesh": {"data": -1},
}


def change(**sections):
    return {name: {**each, **sections.get(name, {})} for name, each in THEIRS.items()}


@pytest.mark.parametrize(
    ("ours", "changed"),
    [
        (change(), []),
        (change(data={"directory": "x"}, training={"steps": 5}, mesh={"data": 2}), []),
        (change(optimizer={"warmup_steps": 20}),
         ["optimizer.warmup_steps=20, the row has 40"]),
    ],
)  # fmt: skip
def test_only_values_that_change_what_is_learnt_are_named(ours, changed):
    assert changed_values(ours, THEIRS) == changed


@pytest.mark.parametrize("steps", [100, 50])
def test_a_smaller_budget_is_the_first_difference(steps):
    metrics = [
        {"kind": "train", "tokens": 700.0}, {"kind": "train", "tokens": None},
        {"kind": "eval"},
    ]  # fmt: skip
    budget = measure_budget(change(training={"steps": steps}), THEIRS, metrics)
    assert budget["share_of_updates"] == steps / 100
    assert budget["published_target_tokens"] == 76_800
    assert budget["share_of_target_tokens"] == 700 / 76_800
    found = differences("table3/E", budget, ["--split=dev"])
    text = "budget: 50 of 100 updates (50 %); checkpoints averaged: 5, 10 updates apart"
    assert (found[0] == text) == (steps == 50)
    assert "config: --split=dev" in found
    assert any(each.startswith("perplexity: ") for each in found)
