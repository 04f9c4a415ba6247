"""What the benchmarks compute of times."""

from benchmarks import harness


def test_figures_compare_within_a_round():
    """The second round was slow for both, so the ratio hardly notices."""
    rounds = [
        {"ours": seconds, "theirs": theirs}
        for seconds, theirs in ((2.0, 1.0), (20.0, 10.0), (1.0, 2.0))
    ]
    found = harness.figures(rounds, "ours", 10, beside="theirs")
    assert found == {
        "seconds": 2.0, "spread": 9.5, "per_second": 5.0, "ratio": 0.5,
        "ratio_least": 0.5, "ratio_most": 2.0,
    }  # fmt: skip
    assert "| 2.00 | 950 % | 5.0 | 0.50 (0.50 - 2.00) |" in harness.row("", "", found)
    alone = harness.figures([{"ours": 2.0}], "ours", 10, beside="theirs")
    assert alone["ratio"] is None
    assert harness.row("", "", alone).endswith("| - |")


def test_turns_are_taken_in_order(monkeypatch):
    monkeypatch.setattr(harness, "PAUSE", 0)
    order = []
    turns = {name: (lambda name=name: order.append(name)) for name in "ab"}
    rounds = harness.take_turns(turns, 2)
    assert order == ["a", "b", "a", "b"]
    assert [list(each) for each in rounds] == [["a", "b"]] * 2
