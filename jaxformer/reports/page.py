"""HTML pages that hold their style, script, data and charting library in one file.

Charts are Vega-Lite; Jinja assembles the page. The page's content
security policy forbids it to load anything, from disk or from any host.
"""

import io
from typing import Any

from jaxformer.system.errors import packages_of

with packages_of("report"):
    import altair as alt
    import jinja2
    import vl_convert

Json = dict[str, Any]  # an object of JSON: data of a page
# Okabe and Ito's colours without yellow and black, which are lost on white or on black;
# then paler ones. People with impaired colour vision can tell the first eight apart.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a6bbe",
    "#7f7f7f", "#649dbd", "#ce9364", "#64b39d", "#caa0b7", "#8fbed8", "#d7b364",
    "#a999c3", "#a3a3a3",
)  # fmt: skip
PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, "pages"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, *, data: object = None, **values: object) -> str:
    """Return the HTML of a template in `pages/`, which extends base.html.

    `data`, JSON values, is `pageData` in the template's script, which makes `specs`:
    Vega-Lite by the names in the template's calls of `chart(name)`. The template has
    `values` by their names.
    """
    library = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    values |= {"data": data, "colours": COLOURS, "library": library}
    return PAGES.get_template(template).render(values)


def picture(chart: alt.TopLevelMixin, kind: str = "png", *, scale: float = 2) -> bytes:
    """Draw a chart as the bytes of a "png", "svg" or "pdf"; no browser is used.

    `scale` is the number of dots of a PNG for each pixel; other kinds ignore it.
    """
    file = io.StringIO() if kind == "svg" else io.BytesIO()
    chart.save(file, format=kind, scale_factor=scale if kind == "png" else 1)
    drawn = file.getvalue()
    return drawn.encode() if isinstance(drawn, str) else drawn
