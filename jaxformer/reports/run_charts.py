"""The charts of a run's report, from the report's data; a colour is a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.reports.page import COLOURS, alt

MAX_POINTS = 400  # of a line; longer logs are thinned
KINDS = {"train": "training", "eval": "validation", "final": "averaged"}

Runs = Sequence[Mapping[str, Any]]


def make_charts(data: Mapping[str, Any]) -> dict[str, alt.TopLevelMixin]:
    """Return the charts that have something to show, by the template's names."""
    runs = data["runs"]
    unit = f"by source length ({data['length_unit']}; n sentences)"
    charts = {
        "loss": curves(runs, "loss", "Loss, with label smoothing (nats a piece)"),
        "nll": curves(runs, "nll", "Negative log-likelihood (nats a piece)"),
        "bleu": curves(runs, "bleu", "BLEU of the validation text"),
        "learning_rate": learning_rates(runs),
        "gradient_norm": curves(runs, "gradient_norm", "Gradient norm before clipping"),
        "tokens_per_second": curves(
            runs, "tokens_per_second", "Target tokens a second"
        ),
        "bleu_by_length": by_length(runs, "bleu", f"BLEU {unit}"),
        "chrf_by_length": by_length(runs, "chrf", f"chrF {unit}"),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def curves(runs: Runs, field: str, title: str) -> alt.LayerChart | None:
    """Draw a field of the log by update; None if no run has it.

    Training is a solid line, validation a dashed one, the average a diamond.
    """
    rows = [
        {"run": run["name"], "kind": kind, "step": line["step"], field: line[field]}
        for run in runs
        for key, kind in KINDS.items()
        for line in _thin(run["curves"][key])
        if line.get(field) is not None
    ]

    def by_kind(channel: Any, *values: Any) -> Any:
        scale = alt.Scale(domain=list(KINDS.values()), range=values)
        return channel("kind:N", scale=scale, legend=None)

    y = alt.Y(f"{field}:Q", title=None, scale=alt.Scale(zero=False))
    tooltip = _tooltip(kind="", step=",", **{field: ".4~g"})
    base = _chart(runs, rows, x=_updates(), y=y, tooltip=tooltip)
    dashes = by_kind(alt.StrokeDash, [1, 0], [6, 3], [1, 0])
    lines = base.mark_line(strokeWidth=1.6).encode(strokeDash=dashes)
    # The many points of training are invisible, but have tooltips.
    is_training = f"datum.kind == '{KINDS['train']}'"
    points = base.mark_point(filled=True, size=45).encode(
        shape=by_kind(alt.Shape, "circle", "circle", "diamond"),
        opacity=alt.condition(is_training, alt.value(0), alt.value(1)),
    )
    return alt.layer(lines, points, title=title) if rows else None


def learning_rates(runs: Runs) -> alt.LayerChart | None:
    """Draw the logged rates as dots on the line of the formula; None without a log."""
    drawn = {"formula": [], "logged": []}
    for run in runs:
        sources = (run["learning_rate"]["formula"], run["curves"]["train"])
        for name, points in zip(drawn, sources, strict=True):
            drawn[name] += [
                {"run": run["name"], "step": point["step"], "rate": rate}
                for point in _thin(points)
                if (rate := point.get("learning_rate")) is not None
            ]
    y = alt.Y("rate:Q", title=None, axis=alt.Axis(format=".1e"))
    encoding = {"x": _updates(), "y": y, "tooltip": _tooltip(step=",", rate=".4e")}
    layers = (
        _chart(runs, drawn["formula"], **encoding).mark_line(strokeWidth=1.2),
        _chart(runs, drawn["logged"], **encoding).mark_point(filled=True, size=18),
    )
    title = "Learning rate: logged (dots) and equation 3 (line)"
    return alt.layer(*layers, title=title) if drawn["logged"] else None


def by_length(runs: Runs, field: str, title: str) -> alt.Chart | None:
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
    """Each run has one colour in all charts; a single one needs no legend."""
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


def _updates() -> alt.X:
    return alt.X("step:Q", title="update", axis=alt.Axis(tickCount=5, format=",d"))


def _tooltip(**formats: str) -> list[alt.Tooltip]:
    """The run, and fields with the formats of numbers; "" for text."""
    return ["run:N"] + [
        alt.Tooltip(f"{name}:Q", format=form) if form else alt.Tooltip(f"{name}:N")
        for name, form in formats.items()
    ]


def _thin(lines: Sequence[Any]) -> Sequence[Any]:
    """Every n-th line, the last one included."""
    stride = -(-len(lines) // MAX_POINTS) or 1
    return lines[::-1][::stride][::-1]
