// Charts. A colour is a run; several runs have a legend.
const MAX_POINTS = 400; // of a line; longer logs are thinned
const KINDS = { train: "training", eval: "validation", final: "averaged", formula: "schedule" };
const CURVES = { // a field of the log, and the title of its chart
  loss: "Loss, with label smoothing (nats a piece)",
  nll: "Negative log-likelihood (nats a piece)",
  bleu: "BLEU of the validation text",
  learning_rate: "Learning rate: logged (solid) and scheduled (dots)",
  gradient_norm: "Gradient norm before clipping",
  tokens_per_second: "Target tokens a second",
};
const names = pageData.runs.map(({ name }) => name);

// Keep every n-th line and the last one.
function thin(lines) {
  const stride = Math.ceil(lines.length / MAX_POINTS);
  return lines.filter((_, at) => (lines.length - 1 - at) % stride === 0);
}

// A tooltip shows the run, and fields by their number formats; "" is text.
function specification(title, rows, formats, encoding, marks) {
  const columns = Math.max(1, Math.floor(50 / (Math.max(...names.map((name) => name.length)) + 4)));
  const legend = { orient: "top", symbolOpacity: 1, labelLimit: 260, columns };
  const scale = { domain: names, range: COLOURS.slice(0, names.length) };
  const color = { field: "run", type: "nominal", title: null, scale, legend: names.length > 1 ? legend : null };
  const tooltip = Object.entries({ run: "", ...formats }).map(([field, format]) =>
    ({ field, ...(format ? { type: "quantitative", format } : { type: "nominal" }) }));
  const data = { values: rows };
  return { title, width: "container", height: 210, data, encoding: { color, tooltip, ...encoding }, ...marks };
}

// A field of the log by update. Training is a solid line, validation dashed, the schedule
// dotted, the average a diamond. The points of training are invisible but have tooltips.
function curve(field, title) {
  const rows = pageData.runs.flatMap(({ name, curves, learning_rate: { formula } }) =>
    Object.entries({ ...curves, formula }).flatMap(([kind, lines]) => thin(lines)
      .filter((line) => (line[field] ?? null) !== null)
      .map((line) => ({ run: name, kind: KINDS[kind], step: line.step, [field]: line[field] }))));
  const byKind = (...range) =>
    ({ field: "kind", type: "nominal", scale: { domain: Object.values(KINDS), range }, legend: null });
  const isRate = field === "learning_rate";
  const encoding = {
    x: { field: "step", type: "quantitative", title: "update", axis: { tickCount: 5, format: ",d" } },
    y: { field, type: "quantitative", title: null, axis: isRate ? { format: ".1e" } : {}, scale: { zero: isRate } },
  };
  const isLine = `indexof(['${KINDS.train}', '${KINDS.formula}'], datum.kind) >= 0`;
  const layer = [
    { mark: { type: "line", strokeWidth: 1.6 }, encoding: { strokeDash: byKind([1, 0], [6, 3], [1, 0], [1, 3]) } },
    {
      mark: { type: "point", filled: true, size: 45 },
      encoding: {
        shape: byKind("circle", "circle", "diamond", "circle"),
        opacity: { condition: { test: isLine, value: 0 }, value: 1 },
      },
    },
  ];
  return specification(title, rows, { kind: "", step: ",", [field]: ".4~g" }, encoding, { layer });
}

// A score by source length, bars of several runs side by side.
function byLength(field, name) {
  const rows = pageData.runs.flatMap((run) => (run.by_length ?? []).map((bucket) => ({
    run: run.name,
    length: `${bucket.from}-${bucket.to}|n=${bucket.sentences.toLocaleString("en")}`,
    [field]: bucket[field],
  })));
  const axis = { labelAngle: 0, labelExpr: "split(datum.label, '|')" };
  const encoding = {
    x: { field: "length", type: "nominal", title: null, sort: null, axis },
    xOffset: { field: "run", type: "nominal", sort: null },
    y: { field, type: "quantitative", title: null },
  };
  const title = `${name} by source length (${pageData.length_unit}; n sentences)`;
  return specification(title, rows, { length: "", [field]: ".2f" }, encoding, { mark: "bar" });
}

for (const [field, title] of Object.entries(CURVES)) specs[field] = curve(field, title);
specs.bleu_by_length = byLength("bleu", "BLEU");
specs.chrf_by_length = byLength("chrf", "chrF");

// Replace language codes by names where the browser has them.
for (const element of document.querySelectorAll("[data-language]")) {
  try {
    const names = new Intl.DisplayNames(["en"], { type: "language" });
    element.textContent = names.of(element.dataset.language.replace("_", "-"));
  } catch { /* the code stays */ }
}

// Join each piece of a translation with the source piece that it is aligned with,
// whenever the drawing appears or changes its size.
const join = new ResizeObserver((entries) => entries.forEach(({ target: figure }) => {
  const svg = figure.querySelector("svg");
  const [source, target] = figure.querySelectorAll("p");
  const middle = (piece) => piece.offsetLeft + piece.offsetWidth / 2;
  svg.replaceChildren(...JSON.parse(figure.dataset.links).map(([s, t]) => {
    const [from, to] = [source.children[s], target.children[t]];
    const line = document.createElementNS(svg.namespaceURI, "line");
    const ends = { x1: middle(from), y1: 2, x2: middle(to), y2: svg.clientHeight - 2 };
    for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
    line.append(document.createElementNS(svg.namespaceURI, "title"));
    line.firstChild.textContent = `${from.textContent} - ${to.textContent}`;
    return line;
  }));
}));
for (const figure of document.querySelectorAll(".alignment")) join.observe(figure);
