"use strict";

const $ = (id) => document.getElementById(id);
const KINDS = {
  // Who looks, and at what; a decoder's row sees the piece before the one it predicts.
  cross: (a) => [a.target, a.source],
  decoder: (a) => [a.target, [null, ...a.target.slice(0, -1)]],
  encoder: (a) => [a.source, a.source],
};
const state = { nBest: 1, source: "", attention: null, piece: 0, layer: null };
let asked = new AbortController(); // of the newest question; older answers are unwanted

// The server ----------------------------------------------------------------------

async function post(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(sentence(answer.error));
  return answer;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + ".";

async function introduce() {
  const response = await fetch("/health").catch(() => null);
  const health = response && (await response.json());
  if (!health) return;
  state.nBest = health.n_best;
  const [from, to] = health.direction.split("-");
  const name = (code) => {
    try {
      return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
    } catch {
      return code;
    }
  };
  $("direction").textContent = `${name(from)} to ${name(to)}`;
  document.title = `${name(from)} to ${name(to)} – jaxformer`;
  $("text-label").textContent = `Sentence in ${name(from)}`;
  $("text").lang = from;
  $("translation").lang = $("candidates").lang = to;
  say(health.status === "starting" ? "The model is being compiled…" : "");
  if (health.status === "starting") setTimeout(introduce, 1000);
}

// Translating -----------------------------------------------------------------------

async function translate(event) {
  event.preventDefault();
  const text = $("text").value.replace(/\s+/g, " ").trim();
  if (!text) {
    $("text").focus();
    return;
  }
  await ask("Translating…", async (signal) => {
    const body = { text, n_best: state.nBest };
    const { translations } = await post("/translate", body, signal);
    state.source = text;
    const best = translations[0];
    showCandidates(best.n_best ?? [best]);
    await choose(best.text, signal);
  });
}

async function ask(status, work) {
  asked.abort();
  const mine = (asked = new AbortController());
  say(status);
  $("error").hidden = true;
  try {
    await work(mine.signal);
    say("");
  } catch (error) {
    if (mine !== asked) return; // a newer question has taken its place
    say("");
    $("error").textContent = error.message;
    $("error").hidden = false;
    $("attention").hidden = true;
  }
}

const say = (text) => ($("status").textContent = text);

function showCandidates(candidates) {
  $("others").hidden = candidates.length < 2;
  $("candidates").replaceChildren(
    ...candidates.map(({ text, score }, index) => {
      const input = element("input", { type: "radio", name: "candidate" });
      input.checked = index === 0;
      input.addEventListener("change", () =>
        ask("Looking…", (signal) => choose(text, signal)),
      );
      const label = element("label");
      const shown = element("span", { className: "score", lang: "en" });
      shown.textContent = `score ${score.toFixed(2).replace("-", "\u2212")}`;
      label.append(input, element("span", {}, text || "(nothing)"), shown);
      return label;
    }),
  );
}

async function choose(target, signal) {
  $("translation").textContent = target || "(nothing)";
  $("answer").hidden = false;
  const pair = { source: state.source, target };
  state.attention = await post("/attention", pair, signal);
  state.piece = 0;
  showLayers(state.attention.cross.length);
  showPieces();
  $("attention").hidden = false;
}

// Attention -------------------------------------------------------------------------

function showLayers(count) {
  const layer = Math.min(state.layer ?? count - 1, count - 1); // the last at first
  state.layer = layer;
  const choices = Array.from({ length: count }, (_, index) => {
    const input = element("input", { type: "radio", name: "layer", value: index });
    input.checked = index === layer;
    const label = element("label");
    label.append(input, String(index + 1));
    return label;
  });
  $("layers").replaceChildren($("layers").firstElementChild, ...choices);
}

const kind = () => document.querySelector("input[name=kind]:checked").value;

function showPieces() {
  const [looking] = KINDS[kind()](state.attention);
  state.piece = Math.min(state.piece, looking.length - 1);
  $("pieces").replaceChildren();
  looking.forEach((piece, index) => {
    const { text, mark, word } = legible(piece, index === looking.length - 1);
    const button = element("button", { type: "button" }, text);
    button.classList.toggle("mark", mark);
    for (const event of ["mouseenter", "focus", "click"]) {
      button.addEventListener(event, () => select(index));
    }
    if (word || !index) $("pieces").append(element("span"));
    $("pieces").lastElementChild.append(button);
  });
  select(state.piece);
}

const buttons = () => [...$("pieces").querySelectorAll("button")];

function select(index) {
  state.piece = index;
  buttons().forEach((button, at) => {
    button.setAttribute("aria-pressed", at === index);
    button.tabIndex = at === index ? 0 : -1;
  });
  showHeads();
}

function showHeads() {
  const [, seen] = KINDS[kind()](state.attention);
  const heads = state.attention[kind()][state.layer];
  const pieces = seen.map((piece, at) => legible(piece, isEnd(piece, at, seen)));
  const cards = heads.map((rows, head) => card(head + 1, rows[state.piece], pieces));
  $("heads").replaceChildren(...cards);
  const most = cards.map((each) => each.querySelector("h3").textContent);
  $("heard").textContent = `${buttons()[state.piece].textContent}. ${most.join(". ")}.`;
}

// Of what the decoder sees, its own end of sentence is never part.
const isEnd = (piece, at, seen) => seen[0] !== null && at === seen.length - 1;

function card(number, weights, pieces) {
  const order = weights.map((_, at) => at).sort((a, b) => weights[b] - weights[a]);
  const percent = (at) => `${Math.round(weights[at] / 10)} %`;
  const title = element("h3", {}, `Head ${number} `);
  title.append(element("span", {}, `most: ${pieces[order[0]].text} ${percent(order[0])}`));
  const line = element("p");
  line.setAttribute("role", "img");
  line.setAttribute(
    "aria-label",
    order.slice(0, 3).map((at) => `${pieces[at].text} ${percent(at)}`).join(", "),
  );
  pieces.forEach(({ text, mark, word }, at) => {
    const piece = element("i", { title: `${text}: ${percent(at)}` }, text);
    piece.classList.toggle("mark", mark);
    piece.style.background = `rgb(var(--heat) / ${weights[at] / 1000})`;
    if (at && word) line.append(" ");
    line.append(piece);
  });
  const item = element("li");
  item.append(title, line);
  return item;
}

/** What to show of a piece: SentencePiece marks the beginning of a word by U+2581. */
function legible(piece, end) {
  if (end || piece === null) {
    return { text: end ? "end" : "start", mark: true, word: true };
  }
  const text = piece.replaceAll("\u2581", " ").trim();
  return { text: text || "␣", mark: false, word: piece.startsWith("\u2581") };
}

function element(name, properties = {}, text = null) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== null) made.textContent = text;
  return made;
}

// Keys ------------------------------------------------------------------------------

function onPieceKey(event) {
  const last = buttons().length - 1;
  const to = {
    ArrowRight: Math.min(state.piece + 1, last),
    ArrowLeft: Math.max(state.piece - 1, 0),
    Home: 0,
    End: last,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  buttons()[to].focus();
}

function onTextKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
}

$("form").addEventListener("submit", translate);
$("text").addEventListener("keydown", onTextKey);
$("pieces").addEventListener("keydown", onPieceKey);
$("kinds").addEventListener("change", showPieces);
$("layers").addEventListener("change", (event) => {
  state.layer = Number(event.target.value);
  showHeads();
});
introduce();
