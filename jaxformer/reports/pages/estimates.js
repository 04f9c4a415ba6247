// An icicle of raw Vega for each estimate, all on one scale of milliseconds.
const WIDTH = 1080, ROW = 30;
const longest = Math.max(...pageData.map((chart) => chart.ms));
const sections = [...new Set(pageData.flatMap((chart) =>
  chart.nodes.map((node) => node.section)))];
for (const { name, ms, nodes } of pageData) {
  const width = WIDTH * ms / longest;
  const levels = 1 + Math.max(...nodes.map((node) =>
    (node.id.match(/\//g) ?? []).length + ("ms" in node) + 1));
  specs[name] = {
    usermeta: { embedOptions: { mode: "vega" } },
    title: { text: `${name}: ${ms.toFixed(2)} ms`, anchor: "start" },
    width: WIDTH, height: levels * ROW, padding: 2,
    data: [{
      name: "tree", values: nodes,
      transform: [
        { type: "stratify", key: "id", parentKey: "parent" },
        {
          type: "partition", field: "ms", size: [width, levels * ROW], padding: 0,
          sort: { field: "value", order: "descending" },
          as: ["x0", "y0", "x1", "y1", "depth", "children"],
        },
        { type: "formula", as: "time", expr: "format(datum.total, '.3f') + ' ms'" },
      ],
    }],
    scales: [{
      name: "colour", type: "ordinal", domain: sections, range: COLOURS,
    }],
    marks: [
      {
        type: "rect", from: { data: "tree" },
        encode: {
          update: {
            x: { field: "x0" }, x2: { field: "x1" },
            y: { field: "y0" }, y2: { field: "y1" },
            fill: { scale: "colour", field: "section" },
            fillOpacity: [
              { test: "datum.depth === 0", value: 0.15 },
              { test: "datum.pass === 'forward'", value: 0.35 }, { value: 0.7 },
            ],
            stroke: { value: "var(--paper)" }, strokeWidth: { value: 1 },
            tooltip: { signal:
              "{part: datum.id, time: datum.time}" },
          },
        },
      },
      {
        type: "text", from: { data: "tree" }, interactive: false,
        encode: {
          update: {
            x: { signal: "datum.x0 + 4" },
            y: { signal: "(datum.y0 + datum.y1) / 2" },
            baseline: { value: "middle" }, fontSize: { value: 11 },
            text: { signal:
              "datum.x1 - datum.x0 < 22 ? '' : datum.name + ' ' + format(datum.total, '.2f')" },
            limit: { signal: "datum.x1 - datum.x0 - 6" },
            fill: { value: "currentColor" },
          },
        },
      },
    ],
  };
}
