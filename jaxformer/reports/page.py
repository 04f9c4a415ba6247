"""One HTML file with everything in it: style, script, data, and the library that draws.

Charts are Vega-Lite, written in Altair; Jinja puts the file together. The page's own
policy forbids it to load anything, from disk or from any host. The only importer of
jinja2 and vl_convert; used by the other modules of this room.
"""

import functools
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError

try:
    import altair as alt
    import jinja2
    import vl_convert
except ImportError as error:
    raise InputError(
        f"reports need the package {error.name}, which is not installed; run: "
        "pip install 'jaxformer[report]'"
    ) from error

# Okabe and Ito's, of which yellow and black are left out: none is lost on white or on
# black, and those who see no red or no green can tell them apart.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a6bbe",
    "#7f7f7f",
)  # fmt: skip


def render(
    template: str,
    *,
    charts: Mapping[str, alt.TopLevelMixin] | None = None,
    data: Any = None,
    **values: Any,
) -> str:
    """The HTML of a template of this folder, which extends base.html.

    `charts` are drawn where the template calls `chart(name)`; `data`, which JSON can
    hold, is what `pageData` gives the template's script. `values` are the template's.
    """
    specs = {name: chart.to_dict() for name, chart in (charts or {}).items()}
    return (
        _environment()
        .get_template(template)
        .render(specs=specs, data=data, library=_library(), colours=COLOURS, **values)
    )


def write(path: Path, html: str) -> None:
    """Write a page. Raises InputError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; choose another --output"
        ) from error


def save_picture(chart: alt.TopLevelMixin, path: Path, *, scale: float = 2) -> None:
    """Write a chart as .png, .svg or .pdf, by its name's ending; no browser is used.

    `scale` is how many dots of a PNG a pixel is wide; the others have none. Raises
    InputError for another ending, and if the file cannot be written.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{path} is not called .png, .svg or .pdf: choose one of them")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(chart, path.suffix[1:], scale=scale))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; choose another --output"
        ) from error


def picture(chart: alt.TopLevelMixin, kind: str = "png", *, scale: float = 2) -> bytes:
    """A chart as the bytes of a picture: "png", "svg" or "pdf"."""
    file = io.StringIO() if kind == "svg" else io.BytesIO()
    chart.save(file, format=kind, **({"scale_factor": scale} if kind == "png" else {}))
    made = file.getvalue()
    return made.encode() if isinstance(made, str) else made


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the installed package."""
    return vl_convert.javascript_bundle().replace("</script", "<\\/script")
