"""Which changed values make another experiment than the published one."""

from jaxformer.reports.reproduction import changed_values


def test_only_values_that_change_what_is_learned_are_named():
    theirs = {
        "training": {"steps": 100}, "optimizer": {"warmup_steps": 40},
        "mesh": {"data": -1},
    }  # fmt: skip
    ours = {
        "training": {"steps": 50}, "optimizer": {"warmup_steps": 2},
        "mesh": {"data": 2},
    }  # fmt: skip
    changed = ["optimizer.warmup_steps=2, the row has 40"]
    assert changed_values(ours, theirs) == changed
