"""The page of an estimate: its tree and table add up, and the charts show them."""

import pytest

from jaxformer.reports import topology_page as estimates

PARTS = [
    ("encoder/attention/query", "forward", 2),
    ("encoder/attention/query", "backward", 4),
    ("encoder/attention", "forward", 1),
    ("optimizer", "", 3),
]


def figures(scale=1):
    parts = [
        {"part": part, "pass": direction, "seconds": scale * ms / 1000}
        for part, direction, ms in PARTS
    ]
    return {
        "topology": "v5e:2x2", "compiler": "TPU compiler 1.2", "microbatches": 1,
        "mesh": {"data": 4, "fsdp": 1, "tensor": 1}, "shape": [8, 16, 16],
        "rematerialise": False, "bytes_per_device": 2**30, "bytes_available": 2**34,
        "estimated_seconds_per_update": scale * 0.01, "share_of_peak": 0.25,
        "collective_bytes": 5_000_000, "collective_seconds": 0.001, "parts": parts,
    }  # fmt: skip


def test_the_tree_adds_up():
    nodes = {node["id"]: node for node in estimates.icicle(figures())}
    totals = {name: node["total"] for name, node in nodes.items()}
    assert totals == pytest.approx({
        "update": 10, "encoder": 7, "encoder/attention": 7,
        "encoder/attention/query": 6, "encoder/attention/query:forward": 2,
        "encoder/attention/query:backward": 4, "encoder/attention:forward": 1,
        "optimizer": 3, "optimizer:": 3,
    })  # fmt: skip
    assert nodes["encoder/attention/query"]["parent"] == "encoder/attention"
    assert nodes["optimizer"]["parent"] == "update"
    assert {node["section"] for node in nodes.values()} == {
        "update", "encoder", "optimizer"
    }  # fmt: skip


def test_the_table_has_every_part_of_both(tmp_path):
    rows = estimates.table([figures(), figures(0.5)])
    assert rows[0] == {
        "part": "encoder/attention/query", "ms": pytest.approx([6, 3])
    }  # fmt: skip
    assert [row["part"] for row in rows[1:]] == ["optimizer", "encoder/attention"]


@pytest.mark.slow
def test_charts_share_one_scale(browser, tmp_path):
    page = tmp_path / "page.html"
    estimates.write(page, [figures(), figures(0.5)])
    browser.open(page)
    assert browser.read("[data-chart]:has(svg)", "each.dataset.chart") == [
        "before", "after"
    ]  # fmt: skip
    widths = browser.read(
        "[data-chart]",
        "Math.max(...[...each.querySelectorAll('.mark-rect path')]"
        ".map((path) => path.getBBox().width))",
    )
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.01)
    texts = " ".join(browser.read("[data-chart] text"))
    for said in ("update 10.00", "update 5.00", "query 6.00", "before: 10.00 ms"):
        assert said in texts
