"use strict";

const pageData = JSON.parse(document.getElementById("data").textContent);
const specs = {}; // charts of Vega-Lite, by the names of their elements
const isDark = matchMedia("(prefers-color-scheme: dark)");

// Return the style sheet's colours in the current scheme as a Vega config.
function theme() {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map((name) =>
    style.getPropertyValue(name).trim());
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    title: { color: ink, anchor: "start", fontSize: 13 },
    axis: {
      labelColor: soft, titleColor: soft, domainColor: line, tickColor: line,
      gridColor: line, gridOpacity: 0.6, labelFontSize: 11, titleFontSize: 11,
    },
    legend: { labelColor: ink, titleColor: soft },
    header: { labelColor: ink, titleColor: soft },
    view: { stroke: null },
    text: { color: ink },
    rule: { color: soft },
  };
}

// Draw a Vega-Lite specification into an element; resolves to Vega's view. "canvas" is
// the faster renderer for thousands of marks.
async function draw(element, spec, renderer = "svg") {
  const { view } = await vegaEmbed(element, spec, {
    actions: { export: true, source: false, compiled: false, editor: false },
    config: theme(),
    renderer,
    downloadFileName: element.dataset.chart ?? element.dataset.file ?? "chart",
  });
  return view;
}

// Functions that redraw when the colour scheme changes.
const drawings = [() => Promise.all([...document.querySelectorAll("[data-chart]")].map(
  (element) => draw(element, specs[element.dataset.chart])))];
const drawAll = async () => {
  for (const each of drawings) await each();
  document.documentElement.dataset.drawn = "yes"; // tests and printers wait for it
};
isDark.addEventListener("change", drawAll);
addEventListener("DOMContentLoaded", drawAll);
