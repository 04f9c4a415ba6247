"""The charts of a run's report, in Altair, from the report's data.

One colour is one run; of a single run, one colour is one kind of line. Used by
`jaxformer.reports.run`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from jaxformer.reports.page import COLOURS

HEIGHT = 210
NEUTRAL = "#8a8a8a"  # seen on white and on black
LEGEND_LETTERS = 50
MOST_POINTS = 800  # of a line: of more every second, third, ... is drawn
KINDS = {"train": "training", "eval": "validation", "final": "averaged"}


def make_charts(data: Mapping[str, Any]) -> dict[str, alt.TopLevelMixin]:
    """Every chart that the data has something for, by the name the template uses."""
    runs = data["runs"]
    charts = {
        "loss": curves(runs, "loss", "Loss, with label smoothing (nats a piece)"),
        "nll": curves(runs, "nll", "Negative log-likelihood (nats a piece)"),
        "ppl": curves(runs, "ppl", "Perplexity a piece, log axis", scale="log"),
        "bleu": curves(runs, "bleu", "BLEU on the validation text", kinds=EVALUATIONS),
        "learning_rate": learning_rates(runs),
        "gradient_norm": curves(
            runs, "gradient_norm", "Gradient norm, before clipping", kinds=("train",)
        ),
        "tokens_per_second": curves(
            runs, "tokens_per_second", "Target tokens a second", kinds=("train",)
        ),
        "skipped_updates": curves(
            runs, "skipped_updates", "Skipped updates so far", kinds=("train",)
        )
        if any(run["skipped_updates"] for run in runs)
        else None,
        "bleu_by_length": by_length(data, "bleu", "BLEU"),
        "chrf_by_length": by_length(data, "chrf", "chrF"),
        "length_ratio": ratios(runs),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


EVALUATIONS = ("eval", "final")


def curves(
    runs: Sequence[Mapping[str, Any]],
    field: str,
    title: str,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    scale: str = "linear",
) -> alt.LayerChart | None:
    """A field of the log by update; None if no run has it."""
    rows = [
        {"run": run["name"], "kind": KINDS[kind], "step": line["step"],
         field: line[field]}
        for run in runs
        for kind in kinds
        for line in _thinned(run["curves"][kind])
        if line.get(field) is not None
    ]  # fmt: skip
    if not rows:
        return None
    present = [
        KINDS[kind] for kind in kinds if any(row["kind"] == KINDS[kind] for row in rows)
    ]
    y_scale, y_axis = alt.Scale(zero=False), alt.Axis(tickCount=5)
    if scale == "log":
        y_scale = alt.Scale(type="log", nice=False)
        y_axis = alt.Axis(values=_log_ticks([row[field] for row in rows]))
    base = (
        alt.Chart(alt.Data(values=rows), title=title)
        .encode(
            x=_updates(),
            y=alt.Y(f"{field}:Q", title=None, scale=y_scale, axis=y_axis),
            color=_colour(runs, rows, "kind"),
            tooltip=_tooltip(("run", "kind"), ("step", ","), (field, ".4~g")),
        )
        .properties(width="container", height=HEIGHT)
    )
    line = base.mark_line(strokeWidth=1.6)
    if len(runs) > 1:
        line = line.encode(strokeDash=_dashes(present))
    # Each kind has its own mark; those of training are unseen, but can be pointed at.
    marks = {"train": ("circle", 0), "eval": ("circle", 1), "final": ("diamond", 1)}
    points = [
        base.transform_filter(f"datum.kind == '{KINDS[kind]}'").mark_point(
            filled=True, size=45, shape=shape, opacity=opacity
        )
        for kind, (shape, opacity) in marks.items()
        if KINDS[kind] in present
    ]
    return alt.layer(line, *points)


def _dashes(present: Sequence[str]) -> alt.StrokeDash:
    """Lines of several runs have the run's colour, and dashes by kind."""
    values = dict(zip(KINDS.values(), ([1, 0], [6, 3], [1, 0]), strict=True))
    lines = [kind for kind in present if kind != KINDS["final"]]
    legend = alt.Legend(
        orient="bottom", title=None, symbolStrokeColor=NEUTRAL, symbolType="stroke"
    )
    return alt.StrokeDash(
        "kind:N",
        scale=alt.Scale(domain=lines, range=[values[kind] for kind in lines]),
        legend=legend if len(lines) > 1 else None,
    )


def _log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten within the values."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [first * 10.0**power for power in powers for first in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def learning_rates(runs: Sequence[Mapping[str, Any]]) -> alt.LayerChart | None:
    """What was logged as dots, on the line of the formula."""
    logged = [
        {"run": run["name"], "kind": "logged", "step": line["step"],
         "learning_rate": line["learning_rate"]}
        for run in runs
        for line in _thinned(run["curves"]["train"], most=120)
        if line["learning_rate"] is not None
    ]  # fmt: skip
    formula = [
        {"run": run["name"], "kind": "formula", **point}
        for run in runs
        for point in run["learning_rate"]["formula"]
    ]
    if not logged:
        return None
    encoded = {
        "x": _updates(),
        "y": alt.Y("learning_rate:Q", title=None, axis=alt.Axis(format=".1e")),
        "color": _colour(runs, logged + formula, "kind"),
        "tooltip": _tooltip(("run", "kind"), ("step", ","), ("learning_rate", ".4e")),
    }
    dots = alt.Chart(alt.Data(values=logged)).mark_point(filled=True, size=18)
    line = alt.Chart(alt.Data(values=formula)).mark_line(strokeWidth=1.2)
    title = "Learning rate: logged (dots) and equation 3 (line)"
    return alt.layer(line.encode(**encoded), dots.encode(**encoded)).properties(
        title=title, width="container", height=HEIGHT
    )


def by_length(data: Mapping[str, Any], field: str, name: str) -> alt.Chart | None:
    """A score by source length, a group of bars a bucket."""
    rows = [
        {"run": run["name"], "bucket": f"{bucket['from']}-{bucket['to']}",
         "label": f"{bucket['from']}-{bucket['to']}|n={bucket['sentences']:,}",
         "sentences": bucket["sentences"], field: bucket[field]}
        for run in data["runs"]
        for bucket in run["by_length"] or ()
    ]  # fmt: skip
    title = f"{name} by source length ({data['length_unit']}; n sentences)"
    return _bars(
        data["runs"], rows, "label", field, title=title,
        tooltip=_tooltip(("run", "bucket"), ("sentences", ","), (field, ".2f")),
    )  # fmt: skip


def ratios(runs: Sequence[Mapping[str, Any]]) -> alt.Chart | None:
    """How long translations are beside their references."""
    rows = [
        {"run": run["name"], "ratio": f"{each['ratio']:.1f}",
         "sentences": each["sentences"]}
        for run in runs
        for each in (run["length_ratio"] or {}).get("histogram", ())
    ]  # fmt: skip
    title = "Sentences by length ratio"
    return _bars(
        runs, rows, "ratio", "sentences", title=title,
        tooltip=_tooltip(("run", "ratio"), ("sentences", ",")),
    )  # fmt: skip


def _bars(
    runs: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    x: str,
    y: str,
    *,
    title: str,
    tooltip: list[alt.Tooltip],
) -> alt.Chart | None:
    if not rows:
        return None
    order = sorted({row[x] for row in rows}, key=lambda text: float(_head(text)))
    two_lines = any("|" in text for text in order)
    label = (
        {"labelExpr": "split(datum.label, '|')"}
        if two_lines
        else {"labelOverlap": "parity"}
    )
    chart = alt.Chart(alt.Data(values=list(rows)), title=title).mark_bar()
    encoded: dict[str, Any] = {
        "x": alt.X(
            f"{x}:N", title=None, sort=order,
            scale=alt.Scale(paddingInner=0.35, paddingOuter=0.25),
            axis=alt.Axis(labelAngle=0, **label),
        ),
        "y": alt.Y(f"{y}:Q", title=None, axis=alt.Axis(tickCount=5)),
        "color": _colour(runs, rows, "run"),
        "tooltip": tooltip,
    }  # fmt: skip
    if len(runs) > 1:
        encoded["xOffset"] = alt.XOffset("run:N", sort=[run["name"] for run in runs])
    return chart.encode(**encoded).properties(width="container", height=HEIGHT)


def _head(text: str) -> str:
    """The first number of "6-10|n=30"."""
    return text.partition("-")[0]


def _colour(
    runs: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], alone: str
) -> alt.Color:
    """By run; of a single run by its field `alone`."""
    field = "run" if len(runs) > 1 else alone
    present = list(dict.fromkeys(row[field] for row in rows))
    names = [run["name"] for run in runs]
    domain = names if field == "run" else present
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(domain))]
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=domain, range=colours),
        legend=_legend(domain) if len(domain) > 1 else None,
    )


def _legend(names: Sequence[str]) -> alt.Legend:
    """Above the chart, in as many columns as narrow windows have room for."""
    columns = max(1, LEGEND_LETTERS // (max(map(len, names)) + 4))
    return alt.Legend(
        orient="top", title=None, symbolOpacity=1, labelLimit=260, columns=columns
    )


def _updates() -> alt.X:
    return alt.X("step:Q", title="update", axis=alt.Axis(tickCount=5, format=",d"))


def _tooltip(names: Sequence[str], *numbers: tuple[str, str]) -> list[alt.Tooltip]:
    texts = [alt.Tooltip(f"{name}:N") for name in names]
    return texts + [alt.Tooltip(f"{name}:Q", format=form) for name, form in numbers]


def _thinned(
    lines: Sequence[Mapping[str, Any]], most: int = MOST_POINTS
) -> list[Mapping[str, Any]]:
    """Every n-th line, the last one included."""
    stride = -(-len(lines) // most) or 1
    return list(lines[::-1][::stride][::-1])
