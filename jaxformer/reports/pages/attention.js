const $ = (id) => document.getElementById(id);
const state = { ...pageData.begin, heads: new Set(pageData.begin.heads) };
let pointed = null; // { side: "query" or "key", at }: the piece whose lines remain
let told = { side: "query", at: 0 }; // the one that the table is about: the last pointed at
let kept = null; // the one that stays when the mouse goes elsewhere
let drawn = { key: null, view: null };
let shown = null; // { queries, keys, weight(head, query, key) } on the screen
let turn = 0; // of the newest wish; older ones give way

const range = (count) => Array.from({ length: count }, (_, at) => at);
const allHeads = range(pageData.heads).map((at) => at + 1);
const numbers = () => [...state.heads].sort((a, b) => a - b);
const sentence = () => pageData.sentences[state.sentence - 1];
const alternative = () => sentence().alternatives[state.alternative - 1];
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

async function looks() {
  const source = sentence().pieces;
  const target = alternative().pieces;
  const [queries, keys, packed] = {
    encoder: [source, source, sentence().encoder],
    decoder: [target, [pageData.start, ...target.slice(0, -1)], alternative().decoder],
    cross: [target, source, alternative().cross],
  }[state.attention];
  const levels = await unpack(packed); // [layers, heads, queries, keys]
  const first = (state.layer - 1) * pageData.heads - 1; // heads count from 1
  const weight = (head, query, key) =>
    levels[((first + head) * queries.length + query) * keys.length + key] / pageData.levels;
  return { queries, keys, weight };
}

function rows({ queries, keys, weight }, least) {
  const found = [];
  for (const head of state.heads) {
    for (const query of queries.keys()) {
      for (const key of keys.keys()) {
        const value = weight(head, query, key);
        if (value > 0 && value >= least) found.push({ head, query, key, weight: value });
      }
    }
  }
  return found;
}

// The figure ------------------------------------------------------------------------

// Lines of several heads lie side by side, so far apart in pieces.
const apart = (step) => Math.min(3 / step, 0.8 / state.heads.size);
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

// Python's chart, with the measures of these pieces in this window.
function measured(name, { queries, keys }) {
  const spec = structuredClone(pageData.charts[name]);
  const room = $("figure").clientWidth - 80; // its padding, and the menu
  const depth = (pieces) => 14 + 6.8 * Math.max(...pieces.map((piece) => piece.length));
  const columns = Math.max(keys.length, name === "lines" ? queries.length : 0);
  const values = { side: "", at: -1, columns, rows: queries.length, queries, keys };
  const cell = name === "heat_maps" ? spec.spec : spec;
  const first = Math.min(depth(queries), 160); // of a heat map's names of rows
  if (name === "lines") {
    const [above, below] = [depth(queries), depth(keys)];
    const between = columns > 20 ? 240 : 180;
    const step = clamp(room / columns, 15, 64);
    Object.assign(values, { above, below, between, heads: numbers(), apart: apart(step) });
    spec.width = columns * step;
    spec.height = above + between + below;
  } else {
    const alone = name === "heat_map";
    const wide = alone ? room - first - 10 : room < 540 ? room / 2 - 22 : 250;
    const step = clamp(wide / columns, ...(alone ? [12, 36] : [2.5, 24]));
    const named = step >= 9;
    cell.width = columns * step;
    cell.height = queries.length * step;
    for (const { axis } of [cell.encoding.x, cell.encoding.y]) {
      Object.assign(axis, { labels: named, labelFontSize: Math.min(12, step) });
    }
    const each = cell.width + 14 + (named ? first : 8);
    const beside = clamp(Math.floor(room / each), 1, state.heads.size);
    spec.columns = Math.ceil(state.heads.size / Math.ceil(state.heads.size / beside));
  }
  for (const param of spec.params) param.value = values[param.name];
  return spec;
}

function tokens({ queries, keys }) {
  return Object.entries({ query: queries, key: keys }).flatMap(([side, pieces]) =>
    pieces.map((text, place) => ({ side, place, text })));
}

// Put data into a specification, wherever it has data of that name.
function fill(spec, name, values) {
  if (spec.data?.name === name) spec.data = { name, values };
  for (const inner of [...(spec.layer ?? []), spec.spec]) inner && fill(inner, name, values);
}

// Let heads have the colours of the scheme that is on.
function colour(spec) {
  const { color } = spec.encoding ?? {};
  if (color?.scale) color.scale.range = allHeads.map(headColour);
  for (const inner of [...(spec.layer ?? []), spec.spec]) inner && colour(inner);
}

function headColour(head) {
  const plain = pageData.colours[head - 1];
  if (!isDark.matches) return plain;
  const lighter = [1, 3, 5].map((at) => Math.round(0.7 * parseInt(plain.slice(at, at + 2), 16) + 76));
  return `rgb(${lighter})`;
}

async function drawFigure(now, mine) {
  const name = state.view === "lines" ? "lines" : state.heads.size > 1 ? "heat_maps" : "heat_map";
  const data = rows(now, name === "lines" ? pageData.least : 0);
  const key = JSON.stringify([
    state.sentence, state.attention === "encoder" || state.alternative, state.attention, name,
    name === "heat_maps" && state.heads.size, $("figure").clientWidth,
  ]);
  if (key === drawn.key) {
    drawn.view.data("weights", data);
    if (name === "lines") {
      drawn.view.signal("heads", numbers()).signal("apart", apart(drawn.step));
    }
    await point(pointed ?? kept);
    return;
  }
  const spec = measured(name, now);
  colour(spec);
  fill(spec, "weights", data);
  fill(spec, "tokens", tokens(now));
  const place = document.createElement("div");
  place.dataset.file = `attention-${state.attention}-layer-${state.layer}`;
  $("figure").append(place); // before the old one goes, so that nothing jumps
  const view = await draw(place, spec, "canvas");
  if (mine !== turn) {
    view.finalize();
    place.remove();
    return;
  }
  drawn.view?.finalize();
  $("figure").replaceChildren(place);
  drawn = { key, view, step: spec.width / Math.max(now.queries.length, now.keys.length) };
  const touched = ({ side, place: at, query }) =>
    side === undefined ? query !== undefined && { side: "query", at: query } : { side, at };
  const over = (item) => (item?.datum && state.view === "lines" && item.datum.side === undefined
    ? null : item?.datum && touched(item.datum)) || null;
  view.addEventListener("mousemove", (_, item) => hover(over(item)));
  view.addEventListener("mouseout", () => hover(null));
  view.addEventListener("click", (_, item) => keep(over(item)));
  await point(pointed ?? kept);
}

// Pieces ----------------------------------------------------------------------------

const isThere = ({ side, at }) => at < shown[side === "query" ? "queries" : "keys"].length;
const same = (a, b) => a?.side === b?.side && a?.at === b?.at;

// Leave of the figure only what has to do with a piece, or all of it, for null.
async function point(piece) {
  if (piece && !isThere(piece)) piece = kept = null;
  pointed = piece;
  told = piece ?? (isThere(told) ? told : { side: "query", at: 0 });
  drawn.view.signal("side", piece?.side ?? "").signal("at", piece?.at ?? -1);
  for (const side of ["query", "key"]) {
    [...$(side).children].forEach((button, at) => {
      button.classList.toggle("on", same(piece, { side, at }));
      button.setAttribute("aria-pressed", same(kept, { side, at }));
    });
  }
  showTable();
  await drawn.view.runAsync();
}

const hover = (piece) => {
  const wanted = piece ?? kept;
  if (!same(wanted, pointed)) point(wanted);
};

function keep(piece) {
  kept = same(piece, kept) ? null : piece;
  point(kept);
}

function showPieces() {
  const { looks, seen } = pageData.kinds[state.attention];
  const named = { query: [looks, "looks"], key: [seen, "is looked at"] };
  const lists = { query: shown.queries, key: shown.keys };
  for (const side of ["query", "key"]) {
    $(`${side}-name`).textContent = `The ${named[side].join(" ")}`;
    const key = lists[side].join("\n");
    if ($(side).dataset.pieces === key) continue; // or the focus would be lost
    $(side).dataset.pieces = key;
    $(side).replaceChildren(...lists[side].map((text, at) => {
      const button = element("button", { type: "button", tabIndex: at ? -1 : 0 }, text);
      button.addEventListener("mouseenter", () => hover({ side, at }));
      button.addEventListener("mouseleave", () => hover(null));
      button.addEventListener("focus", () => hover({ side, at }));
      button.addEventListener("blur", () => hover(null));
      button.addEventListener("click", () => keep({ side, at }));
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

function showTable() {
  const { queries, keys, weight } = shown;
  const { side, at } = told;
  const [looking, others] = side === "query" ? [queries, keys] : [keys, queries];
  const verb = side === "query" ? "looks at" : "is looked at by";
  const table = element("table");
  const caption = element("caption");
  caption.append(element("strong", {}, looking[at]), `, piece ${at + 1}, ${verb}`);
  table.append(caption);
  const said = [];
  for (const head of allHeads) {
    const weights = others.map((_, other) =>
      side === "query" ? weight(head, at, other) : weight(head, other, at));
    const order = weights.map((_, other) => other).filter((other) => weights[other] > 0)
      .sort((a, b) => weights[b] - weights[a]).slice(0, 4);
    const row = element("tr");
    row.style.setProperty("--head", headColour(head));
    const name = element("th", { scope: "row" });
    name.append(element("span", { className: "dot" }), ` head ${head}`);
    row.append(name);
    for (const other of [...order, ...Array(4 - order.length).fill(null)]) {
      row.append(element("td"));
      if (other === null) continue;
      const share = element("div", { className: "share" });
      share.style.setProperty("--weight", `${100 * weights[other]}%`);
      share.append(element("span", {}, others[other]), element("span", {}, percent(weights[other])));
      row.lastChild.append(share);
    }
    table.append(row);
    if (order.length) said.push(`head ${head}: ${others[order[0]]} ${percent(weights[order[0]])}`);
  }
  $("table").replaceChildren(table);
  $("heard").textContent = pointed ? `${looking[at]} ${verb}: ${said.join(", ")}` : "";
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
  $("kinds").append(...Object.entries(pageData.kinds).map(([kind, { name }]) =>
    radio("attention", kind, name)));
  $("layers").append(...range(pageData.layers).map((at) => radio("layer", at + 1, at + 1)));
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
    `Weights are rounded to 1/${pageData.levels}, so that a percentage is off by at most ` +
    `${(50 / pageData.levels).toFixed(1)}. No line is drawn for less than ` +
    `${100 * pageData.least} %. A dot begins a piece that goes on with a word. The attention ` +
    "of a translation is that of its text, cut into pieces anew.";
}

// With all heads shown, one is shown alone; the last one brings all back.
function toggled(head) {
  if (state.heads.size === pageData.heads && pageData.heads > 1) return new Set([head]);
  const heads = new Set(allHeads.filter((each) => state.heads.has(each) !== (each === head)));
  return heads.size ? heads : new Set(allHeads);
}

function showChoices() {
  $("sentence").value = state.sentence;
  $("source").textContent = sentence().text;
  if ($("alternatives").dataset.sentence !== String(state.sentence)) { // else keep focus
    $("alternatives").dataset.sentence = state.sentence;
    $("alternatives").replaceChildren(...sentence().alternatives.map(candidate));
  }
  for (const name of ["alternative", "attention", "layer", "view"]) {
    for (const input of document.getElementsByName(name)) {
      input.checked = input.value === String(state[name]);
    }
  }
  for (const button of $("heads").querySelectorAll("[data-head]")) {
    const head = Number(button.dataset.head);
    button.style.setProperty("--head", headColour(head));
    button.setAttribute("aria-pressed", state.heads.has(head));
  }
  $("all").setAttribute("aria-pressed", state.heads.size === pageData.heads);
  const { name, looks, seen } = pageData.kinds[state.attention];
  const all = state.heads.size === pageData.heads && pageData.heads > 1;
  const heads = all ? `all ${pageData.heads} heads` : `head${state.heads.size > 1 ? "s" : ""} ${numbers().join(", ")}`;
  const [from, to] = state.view === "lines" ? ["above", "below"] : ["rows", "columns"];
  $("caption").textContent =
    `${name}, layer ${state.layer} of ${pageData.layers}, ${heads}: the ${looks} (${from}) ` +
    `looks at the ${seen} (${to}); the stronger the colour, the larger the weight.`;
}

function candidate({ parts, score, log_probability, tokens }, at) {
  const label = element("label");
  const input = element("input", { type: "radio", name: "alternative", value: at + 1 });
  const text = element("span");
  for (const [kind, words] of parts) {
    text.append(element({ same: "span", new: "ins", gone: "del" }[kind], {}, words), " ");
  }
  if (!parts.length) text.append("(nothing)");
  const minus = (value) => value.toFixed(2).replace("-", "\u2212");
  const measures = [
    score === null ? "given" : `score ${minus(score)}`, `log P ${minus(log_probability)}`,
    `${tokens} pieces`,
  ];
  label.append(input, text, element("span", { className: "numbers" }, measures.join(" · ")));
  return label;
}

// The hash: a view that can be linked to -------------------------------------------

function write() {
  const { heads, ...others } = state;
  const chosen = heads.size === pageData.heads ? {} : { heads: [...heads].join(",") };
  history.replaceState(null, "", `#${new URLSearchParams({ ...others, ...chosen })}`);
}

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const upTo = { sentence: pageData.sentences.length, layer: pageData.layers };
  const wanted = {};
  for (const name of ["sentence", "layer"]) {
    const value = Number(given.get(name));
    if (value >= 1 && value <= upTo[name] && value % 1 === 0) wanted[name] = value;
  }
  const count = pageData.sentences[(wanted.sentence ?? state.sentence) - 1].alternatives.length;
  const other = Number(given.get("alternative"));
  if (given.size) wanted.alternative = allowed(other, count) ? other : 1;
  if (Object.hasOwn(pageData.kinds, given.get("attention"))) wanted.attention = given.get("attention");
  if (["lines", "heat_map"].includes(given.get("view"))) wanted.view = given.get("view");
  const heads = (given.get("heads") ?? "").split(",").map(Number)
    .filter((head) => allowed(head, pageData.heads));
  if (given.size) wanted.heads = new Set(heads.length ? heads : allHeads);
  Object.assign(state, wanted);
}

const allowed = (value, most) => Number.isInteger(value) && value >= 1 && value <= most;

// Together --------------------------------------------------------------------------

async function show() {
  const mine = ++turn;
  showChoices();
  const now = await looks();
  if (mine !== turn) return;
  shown = now;
  showPieces();
  await drawFigure(now, mine);
  document.documentElement.dataset.shown = mine; // tests wait for it
}

function change(wishes) {
  Object.assign(state, wishes);
  write();
  return show();
}

readHash();
build();
$("sentence").addEventListener("change", (event) => {
  kept = null;
  change({ sentence: Number(event.target.value), alternative: 1 });
});
addEventListener("change", ({ target }) => {
  if (["alternative", "layer"].includes(target.name)) change({ [target.name]: Number(target.value) });
  if (["attention", "view"].includes(target.name)) {
    kept = null;
    change({ [target.name]: target.value });
  }
});
addEventListener("hashchange", () => { readHash(); show(); });
addEventListener("keydown", (event) => event.key === "Escape" && keep(null));
for (const side of ["query", "key"]) $(side).addEventListener("keydown", onPieceKey);
let width = innerWidth;
let later = null;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a telephone's address bar changes the height alone
  width = innerWidth;
  clearTimeout(later);
  later = setTimeout(show, 150);
});
drawings.push(() => { drawn.key = null; return show(); });
