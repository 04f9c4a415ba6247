"""The charts of a run's report, from the report's data; a colour is a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.reports.page import COLOURS, alt

MAX_POINTS = 400  # of a line; longer logs are thinned
KINDS = {"train": "training", "eval": "validation", "final": "averaged"}
FORMULA = "equation 3"
CURVES = {  # a field of the log, and the title of its chart
    "loss": "Loss, with label smoothing (nats a piece)",
    "nll": "Negative log-likelihood (nats a piece)",
    "bleu": "BLEU of the validation text",
    "learning_rate": "Learning rate: logged (solid) and equation 3 (dots)",
    "gradient_norm": "Gradient norm before clipping",
    "tokens_per_second": "Target tokens a second",
}

Runs = Sequence[Mapping[str, Any]]


def make_charts(data: Mapping[str, Any]) -> dict[str, alt.TopLevelMixin]:
    """Return the charts for which there is data, by the template's names."""
    runs = data["runs"]
    charts = {name: _curve(runs, name, title) for name, title in CURVES.items()}
    unit = f"by source length ({data['length_unit']}; n sentences)"
    for field, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        charts[f"{field}_by_length"] = _by_length(runs, field, f"{name} {unit}")
    return {name: chart for name, chart in charts.items() if chart is not None}


def _curve(runs: Runs, field: str, title: str) -> alt.LayerChart | None:
    """Draw a field of the log by update; None if no run has it.

    Training is a solid line, validation dashed, equation 3 dotted, the average a
    diamond. The points of training are invisible but have tooltips.
    """
    rows = []
    for run in runs:
        curves = {kind: run["curves"][key] for key, kind in KINDS.items()}
        curves[FORMULA] = run["learning_rate"]["formula"]
        rows += [
            {"run": run["name"], "kind": kind, "step": line["step"], field: line[field]}
            for kind, lines in curves.items()
            for line in _thin(lines)
            if line.get(field) is not None
        ]

    def by_kind(channel: Any, *values: Any) -> Any:
        scale = alt.Scale(domain=[*KINDS.values(), FORMULA], range=values)
        return channel("kind:N", scale=scale, legend=None)

    is_rate = field == "learning_rate"
    axis = alt.Axis(format=".1e") if is_rate else alt.Axis()
    y = alt.Y(f"{field}:Q", title=None, axis=axis, scale=alt.Scale(zero=is_rate))
    x = alt.X("step:Q", title="update", axis=alt.Axis(tickCount=5, format=",d"))
    tooltip = _tooltip(kind="", step=",", **{field: ".4~g"})
    base = _chart(runs, rows, x=x, y=y, tooltip=tooltip)
    dashes = by_kind(alt.StrokeDash, [1, 0], [6, 3], [1, 0], [1, 3])
    lines = base.mark_line(strokeWidth=1.6).encode(strokeDash=dashes)
    is_line = f"indexof(['{KINDS['train']}', '{FORMULA}'], datum.kind) >= 0"
    points = base.mark_point(filled=True, size=45).encode(
        shape=by_kind(alt.Shape, "circle", "circle", "diamond", "circle"),
        opacity=alt.condition(is_line, alt.value(0), alt.value(1)),
    )
    return alt.layer(lines, points, title=title) if rows else None


def _by_length(runs: Runs, field: str, title: str) -> alt.Chart | None:
    """Draw a score by source length, bars of several runs side by side."""
    rows = [
        {
            "run": run["name"],
            "length": f"{bucket['from']}-{bucket['to']}|n={bucket['sentences']:,}",
            field: bucket[field],
        }
        for run in runs
        for bucket in run["by_length"] or ()
    ]
    axis = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '|')")
    chart = _chart(
        runs,
        rows,
        x=alt.X("length:N", title=None, sort=None, axis=axis),
        xOffset=alt.XOffset("run:N", sort=None),
        y=alt.Y(f"{field}:Q", title=None),
        tooltip=_tooltip(length="", **{field: ".2f"}),
    )
    return chart.mark_bar().properties(title=title) if rows else None


def _chart(runs: Runs, rows: Sequence[Mapping[str, Any]], **encoding: Any) -> alt.Chart:
    """Make a chart in which each run has its colour; several runs get a legend."""
    names = [run["name"] for run in runs]
    columns = max(1, 50 // (max(map(len, names)) + 4))  # as narrow windows have room
    legend = alt.Legend(orient="top", symbolOpacity=1, labelLimit=260, columns=columns)
    color = alt.Color(
        "run:N",
        title=None,
        scale=alt.Scale(domain=names, range=list(COLOURS[: len(names)])),
        legend=legend if len(names) > 1 else None,
    )
    chart = alt.Chart(alt.Data(values=rows), width="container", height=210)
    return chart.encode(color=color, **encoding)


def _tooltip(**formats: str) -> list[alt.Tooltip]:
    """Show the run, and fields by their number formats; "" is text."""
    return ["run:N"] + [
        alt.Tooltip(f"{name}:Q", format=form) if form else alt.Tooltip(f"{name}:N")
        for name, form in formats.items()
    ]


def _thin(lines: Sequence[Any]) -> Sequence[Any]:
    """Keep every n-th line and the last one."""
    stride = -(-len(lines) // MAX_POINTS) or 1
    return lines[::-1][::stride][::-1]
