"""The page of jaxformer check --topology: estimated time by section of the model."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jaxformer.reports import page
from jaxformer.reports.page import Json
from jaxformer.system.files import write_atomically


def icicle(figures: Json) -> list[Json]:
    """Return the sections of the model as a tree, parents before children.

    A leaf has its milliseconds, and the pass "forward", "backward" or ""; `total` is
    that of a node and all below it.
    """
    nodes = {"update": {"id": "update", "parent": None, "name": "update"}}
    for each in figures["parts"]:
        path = each["part"].split("/")
        for depth in range(1, len(path) + 1):
            name = "/".join(path[:depth])
            node = {"id": name, "name": path[depth - 1]}
            node["parent"] = "/".join(path[: depth - 1]) or "update"
            nodes.setdefault(name, node)
        leaf = f"{each['part']}:{each['pass']}"
        nodes[leaf] = {
            "id": leaf, "parent": each["part"], "name": each["pass"] or "once",
            "pass": each["pass"], "ms": 1000 * each["seconds"],
        }  # fmt: skip
    for node in nodes.values():
        node["section"] = node["id"].partition("/")[0].partition(":")[0]
        above = node["id"] if "ms" in node else None
        while above is not None:
            nodes[above]["total"] = nodes[above].get("total", 0) + node["ms"]
            above = nodes[above]["parent"]
    return list(nodes.values())


def table(estimates: Sequence[Json]) -> list[Json]:
    """Return a row for each part, largest first: its milliseconds in each estimate."""
    sums = []
    for figures in estimates:
        sums.append(Counter())
        for each in figures["parts"]:
            sums[-1][each["part"]] += 1000 * each["seconds"]
    names = sorted(set().union(*sums), key=lambda name: -sums[-1][name])
    return [{"part": name, "ms": [found[name] for found in sums]} for name in names]


def write(output: Path, estimates: Sequence[Json]) -> None:
    """Write the page of an estimate, or of an earlier one and then this one."""
    names = ["before", "after"] if len(estimates) > 1 else ["update"]
    charts = [
        {"name": name, "ms": 1000 * each["estimated_seconds_per_update"],
         "nodes": icicle(each)}
        for name, each in zip(names, estimates, strict=True)
    ]  # fmt: skip
    rows, named = table(estimates), list(zip(names, estimates, strict=True))
    values = {"estimates": named, "last": estimates[-1], "rows": rows}
    write_atomically(output, page.render("estimates.html", data=charts, **values))
