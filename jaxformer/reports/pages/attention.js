const LEVELS = 255; // weights are bytes: this one stands for 1
const $ = (id) => document.getElementById(id);
const state = { ...pageData.begin, heads: new Set(pageData.begin.heads) };
// A piece is { side: "query" or "key", at: its index }.
let hovered = null; // the piece whose lines alone are shown
let pinned = null; // the piece that stays so when the mouse leaves
let inTable = { side: "query", at: 0 }; // the piece that the table is about
let drawn = { key: null, view: null }; // Vega's view, and the choices that it is for
let matrix = null; // { queries, keys, weight(head, query, key) } on the screen
let turn = 0; // counts calls of show(); an outdated call stops

const allHeads = Array.from({ length: pageData.heads }, (_, at) => at + 1);
const shownHeads = () => [...state.heads].sort((a, b) => a - b);
const allAreShown = () => state.heads.size === pageData.heads;
const layers = () => pageData.layers[state.attention];
const kind = () => pageData.kinds[state.attention];
const sentence = () => pageData.sentences[state.sentence - 1];
const alternative = () => sentence().alternatives[state.alternative - 1];
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
const percent = (weight) => {
  const text = (100 * weight).toFixed(0);
  return text === "0" && weight > 0 ? "< 1 %" : `${text} %`;
};

// Weights ---------------------------------------------------------------------------

const unpacked = new Map(); // by their packed text

async function unpack(text) {
  if (!unpacked.has(text)) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(text, new Uint8Array(await new Response(plain).arrayBuffer()));
  }
  return unpacked.get(text);
}

async function readMatrix() {
  const shown = { ...sentence(), ...alternative() };
  const [queries, keys] = ["queries", "keys"].map((name) => shown.sides[kind()[name]]);
  const levels = await unpack(shown[state.attention]); // [layers, heads, queries, keys]
  const first = (state.layer - 1) * pageData.heads - 1; // heads count from 1
  const weight = (head, query, key) =>
    levels[((first + head) * queries.length + query) * keys.length + key] / LEVELS;
  return { queries, keys, weight };
}

function chartRows({ queries, keys, weight }, least) {
  const rows = [];
  for (const head of state.heads) {
    for (const query of queries.keys()) {
      for (const key of keys.keys()) {
        const value = weight(head, query, key);
        if (value > 0 && value >= least) rows.push({ head, query, key, weight: value });
      }
    }
  }
  return rows;
}

// The figure ------------------------------------------------------------------------

// A chart's specification with data, and in the sizes of its pieces in this window.
function filled(name, weights) {
  const { queries, keys } = matrix;
  const spec = structuredClone(pageData.charts[name]);
  const room = $("figure").clientWidth - 100; // its padding, and the menu
  const [above, below] = [queries, keys].map((pieces) =>
    14 + 6.8 * Math.max(...pieces.map((piece) => piece.length)));
  const several = name === "heat_maps";
  const cell = several ? spec.spec : spec;
  const values = { side: "", at: -1, queries, keys, heads: shownHeads(), above, below };
  if (name === "lines") {
    const columns = Math.max(queries.length, keys.length);
    values.between = columns > 20 ? 240 : 180;
    spec.width = columns * clamp(room / columns, 14, 64);
    spec.height = above + values.between + below;
  } else {
    const names = Math.min(above, 160); // width of the names of rows
    const narrow = room < 540;
    const beside = narrow || state.heads.size <= 4 ? 2 : 3;
    const wide = several ? room / beside - (narrow ? 22 : 35) : room - names - 10;
    const step = clamp(wide / keys.length, ...(several ? [2.5, 24] : [12, 36]));
    const named = step >= 9;
    cell.width = cell.height = { step };
    for (const [channel, { length }] of [["x", keys], ["y", queries]]) {
      const { axis, scale } = cell.encoding[channel];
      scale.domain = [...Array(length).keys()];
      Object.assign(axis, { labels: named, labelFontSize: Math.min(12, step) });
    }
    const each = keys.length * step + 14 + (named ? names : 8);
    const most = clamp(Math.floor(room / each), 1, state.heads.size);
    spec.columns = Math.ceil(state.heads.size / Math.ceil(state.heads.size / most));
  }
  const { color } = (name === "lines" ? spec.layer[1] : cell).encoding;
  color.scale = { domain: allHeads, range: allHeads.map(headColour) };
  const tokens = ["query", "key"].flatMap((side) =>
    piecesOf(side).map((text, index, { length }) => ({ side, index, text, count: length })));
  const params = Object.entries(values).map(([name, value]) => ({ name, value }));
  const data = { data: { name: "weights" }, datasets: { weights, tokens } };
  // The description is what a screen reader says.
  return { ...spec, params, ...data, description: $("caption").textContent };
}

function headColour(head) {
  const plain = COLOURS[(head - 1) % COLOURS.length];
  if (!isDark.matches) return plain;
  const lighter = [1, 3, 5].map((at) => Math.round(0.7 * parseInt(plain.slice(at, at + 2), 16) + 76));
  return `rgb(${lighter})`;
}

async function drawFigure(mine) {
  const name = state.view === "lines" ? "lines" : state.heads.size > 1 ? "heat_maps" : "heat_map";
  const weights = chartRows(matrix, name === "lines" ? pageData.min_weight : 0);
  const key = JSON.stringify([
    state.sentence, state.attention === "encoder" || state.alternative, state.attention, name,
    name === "heat_maps" && state.heads.size, $("figure").clientWidth,
  ]);
  if (key === drawn.key) {
    drawn.view.data("weights", weights).description($("caption").textContent);
    if (name === "lines") drawn.view.signal("heads", shownHeads());
    return point(hovered ?? pinned);
  }
  const container = document.createElement("div");
  container.dataset.file = `attention-${state.attention}-layer-${state.layer}`;
  $("figure").append(container); // before the old one is removed, so that the page keeps its height
  const view = await draw(container, filled(name, weights), "canvas");
  if (mine !== turn) {
    view.finalize();
    container.remove();
    return null;
  }
  drawn.view?.finalize();
  $("figure").replaceChildren(container);
  drawn = { key, view };
  // The piece under the mouse: of lines its box, of a heat map its row.
  const under = ({ datum } = {}) => (datum?.side !== undefined
    ? { side: datum.side, at: datum.index }
    : state.view === "heat_map" && datum?.query !== undefined
      ? { side: "query", at: datum.query } : null);
  view.addEventListener("mousemove", (_, item) => hover(under(item ?? {})));
  view.addEventListener("mouseout", () => hover(null));
  view.addEventListener("click", (_, item) => pin(under(item ?? {})));
  return point(hovered ?? pinned);
}

// Pieces ----------------------------------------------------------------------------

const piecesOf = (side) => matrix[side === "query" ? "queries" : "keys"];
const exists = ({ side, at }) => at < piecesOf(side).length;
const same = (a, b) => a?.side === b?.side && a?.at === b?.at;

// Show only the weights of a piece, or all weights for null.
async function point(piece) {
  if (piece && !exists(piece)) piece = pinned = null;
  hovered = piece;
  inTable = piece ?? (exists(inTable) ? inTable : { side: "query", at: 0 });
  drawn.view.signal("side", piece?.side ?? "").signal("at", piece?.at ?? -1);
  for (const side of ["query", "key"]) {
    [...$(side).children].forEach((button, at) => {
      button.classList.toggle("on", same(piece, { side, at }));
      button.setAttribute("aria-pressed", same(pinned, { side, at }));
    });
  }
  showTable();
  await drawn.view.runAsync();
}

const hover = (piece) => {
  const next = piece ?? pinned;
  if (!same(next, hovered)) point(next);
};

function pin(piece) {
  pinned = same(piece, pinned) ? null : piece;
  point(pinned);
}

function showPieces() {
  $("query-name").textContent = `Queries: the ${kind().queries}`;
  $("key-name").textContent = `Keys: the ${kind().keys}`;
  for (const side of ["query", "key"]) {
    const key = piecesOf(side).join("\n");
    if ($(side).dataset.pieces === key) continue; // or the focus would be lost
    $(side).dataset.pieces = key;
    $(side).replaceChildren(...piecesOf(side).map((text, at) => {
      const button = element("button", { type: "button", tabIndex: at ? -1 : 0 }, text);
      for (const event of ["mouseenter", "focus"]) {
        button.addEventListener(event, () => hover({ side, at }));
      }
      for (const event of ["mouseleave", "blur"]) {
        button.addEventListener(event, () => hover(null));
      }
      button.addEventListener("click", () => pin({ side, at }));
      return button;
    }));
  }
}

function onPieceKey(event) {
  const buttons = [...event.currentTarget.children];
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (!buttons[to]) return;
  event.preventDefault();
  buttons[at].tabIndex = -1;
  buttons[to].tabIndex = 0;
  buttons[to].focus();
}

// The largest weights of each head for one piece, at most four.
function showTable() {
  const { side, at } = inTable;
  const others = piecesOf(side === "query" ? "key" : "query");
  const verb = side === "query" ? "attends to" : "is attended to by";
  const table = element("table");
  const caption = element("caption");
  caption.append(element("strong", {}, piecesOf(side)[at]), `, piece ${at + 1}, ${verb}`);
  table.append(caption);
  const spoken = [];
  for (const head of allHeads) {
    const weights = others.map((_, other) =>
      matrix.weight(head, ...(side === "query" ? [at, other] : [other, at])));
    const order = [...others.keys()].sort((a, b) => weights[b] - weights[a])
      .filter((other, rank) => weights[other] >= (rank ? pageData.min_weight : 1e-9));
    const row = element("tr");
    row.style.setProperty("--head", headColour(head));
    const name = element("th", { scope: "row" });
    name.append(element("span", { className: "dot" }), ` head ${head}`);
    row.append(name);
    for (const rank of [0, 1, 2, 3]) {
      const cell = element("td");
      row.append(cell);
      if (rank >= order.length) continue;
      const other = order[rank];
      const share = element("div", { className: "share" });
      share.style.setProperty("--weight", `${100 * weights[other]}%`);
      share.append(element("span", {}, others[other]), element("span", {}, percent(weights[other])));
      cell.append(share);
    }
    table.append(row);
    if (order.length) spoken.push(`head ${head}: ${others[order[0]]} ${percent(weights[order[0]])}`);
  }
  $("table").replaceChildren(table);
  $("spoken").textContent = hovered ? `${piecesOf(side)[at]} ${verb}: ${spoken.join(", ")}` : "";
}

// Choices ---------------------------------------------------------------------------

function element(name, properties = {}, text = null) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== null) made.textContent = text;
  return made;
}

function radio(name, value, text) {
  const label = element("label");
  label.append(element("input", { type: "radio", name, value }), element("span", {}, text));
  return label;
}

function build() {
  $("pick").hidden = pageData.sentences.length === 1;
  $("sentence").append(...pageData.sentences.map(({ text }, at) =>
    element("option", { value: at + 1 }, `${at + 1}. ${text}`)));
  const kinds = Object.entries(pageData.kinds);
  $("kinds").append(...kinds.map(([kind, { name }]) => radio("attention", kind, name)));
  const most = Math.max(...Object.values(pageData.layers));
  $("layers").append(...[...Array(most).keys()].map((at) => radio("layer", at + 1, at + 1)));
  const all = element("button", { type: "button", id: "all" }, "all");
  all.addEventListener("click", () => change({ heads: new Set(allHeads) }));
  $("heads").append(all, ...allHeads.map((head) => {
    const button = element("button", { type: "button" });
    button.dataset.head = head;
    button.setAttribute("aria-label", `head ${head}`);
    button.append(element("span", { className: "dot" }), String(head));
    button.addEventListener("click", () => change({ heads: toggled(head) }));
    return button;
  }));
  $("rounding").textContent =
    `Weights are rounded to 1/${LEVELS}: a percentage is off by at most ` +
    `${(50 / LEVELS).toFixed(1)}. Lines below ${100 * pageData.min_weight} % are not ` +
    "drawn. A piece that continues a word begins with a dot.";
}

// With all heads shown, one is shown alone; hiding the last one shows all.
function toggled(head) {
  if (allAreShown() && pageData.heads > 1) return new Set([head]);
  const heads = new Set(allHeads.filter((each) => state.heads.has(each) !== (each === head)));
  return heads.size ? heads : new Set(allHeads);
}

function showChoices() {
  $("sentence").value = state.sentence;
  $("source").textContent = sentence().text;
  if ($("alternatives").dataset.sentence !== String(state.sentence)) { // else keep focus
    $("alternatives").dataset.sentence = state.sentence;
    $("alternatives").replaceChildren(...sentence().alternatives.map(alternativeRow));
  }
  for (const name of ["alternative", "attention", "layer", "view"]) {
    for (const input of document.getElementsByName(name)) {
      input.checked = input.value === String(state[name]);
      if (name === "layer") input.parentElement.hidden = input.value > layers();
    }
  }
  for (const button of $("heads").querySelectorAll("[data-head]")) {
    const head = Number(button.dataset.head);
    button.style.setProperty("--head", headColour(head));
    button.setAttribute("aria-pressed", state.heads.has(head));
  }
  $("all").setAttribute("aria-pressed", allAreShown());
  const heads = allAreShown() && pageData.heads > 1 ? `all ${pageData.heads} heads`
    : `head${state.heads.size > 1 ? "s" : ""} ${shownHeads().join(", ")}`;
  const [from, to] = state.view === "lines" ? ["above", "below"] : ["rows", "columns"];
  $("caption").textContent =
    `${kind().name}, layer ${state.layer} of ${layers()}, ${heads}: the ${kind().queries} ` +
    `(${from}) attends to the ${kind().keys} (${to}); the stronger the colour, the larger the weight.`;
}

function alternativeRow({ parts, score, log_probability, tokens }, at) {
  const label = element("label");
  const input = element("input", { type: "radio", name: "alternative", value: at + 1 });
  const text = element("span");
  for (const [change, words] of parts) {
    text.append(element({ same: "span", new: "ins", gone: "del" }[change], {}, words), " ");
  }
  if (!parts.length) text.append("(nothing)");
  const minus = (value) => value.toFixed(2).replace("-", "\u2212");
  const numbers = [
    score === null ? "given" : `score ${minus(score)}`, `log P ${minus(log_probability)}`,
    `${tokens} pieces`,
  ];
  label.append(input, text, element("span", { className: "numbers" }, numbers.join(" · ")));
  return label;
}

// The hash: a view that can be linked to -------------------------------------------

function writeHash() {
  const { heads, ...others } = state;
  const chosen = allAreShown() ? {} : { heads: shownHeads().join(",") };
  history.replaceState(null, "", `#${new URLSearchParams({ ...others, ...chosen })}`);
}

const isUpTo = (most) => (value) => Number.isInteger(value) && value >= 1 && value <= most;

// Missing and invalid values keep the state; alternative and heads are reset.
function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.size) return;
  const number = (name, most, otherwise) =>
    [Number(given.get(name))].find(isUpTo(most)) ?? otherwise;
  const known = (name, names) => (names.includes(given.get(name)) ? given.get(name) : state[name]);
  state.sentence = number("sentence", pageData.sentences.length, state.sentence);
  state.alternative = number("alternative", sentence().alternatives.length, 1);
  state.attention = known("attention", Object.keys(pageData.kinds));
  state.layer = number("layer", layers(), Math.min(state.layer, layers()));
  state.view = known("view", ["lines", "heat_map"]);
  const heads = (given.get("heads") ?? "").split(",").map(Number).filter(isUpTo(pageData.heads));
  state.heads = new Set(heads.length ? heads : allHeads);
}

// Together --------------------------------------------------------------------------

async function show() {
  const mine = ++turn;
  showChoices();
  const read = await readMatrix();
  if (mine !== turn) return;
  matrix = read;
  showPieces();
  await drawFigure(mine);
  document.documentElement.dataset.shown = mine; // tests wait for it
}

function change(changes) {
  Object.assign(state, changes);
  state.layer = Math.min(state.layer, layers());
  if ("sentence" in changes || "attention" in changes || "view" in changes) pinned = null;
  writeHash();
  return show();
}

readHash();
build();
$("sentence").addEventListener("change", (event) =>
  change({ sentence: Number(event.target.value), alternative: 1 }));
addEventListener("change", ({ target: { name, value } }) => {
  if (["alternative", "layer"].includes(name)) change({ [name]: Number(value) });
  if (["attention", "view"].includes(name)) change({ [name]: value });
});
addEventListener("hashchange", () => { readHash(); show(); });
addEventListener("keydown", (event) => event.key === "Escape" && pin(null));
for (const side of ["query", "key"]) $(side).addEventListener("keydown", onPieceKey);
let width = innerWidth;
let resized = null;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a telephone's address bar changes the height alone
  width = innerWidth;
  clearTimeout(resized);
  resized = setTimeout(show, 150);
});
drawings.push(() => { drawn.key = null; return show(); });
