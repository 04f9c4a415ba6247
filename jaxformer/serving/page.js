"use strict";

const $ = (id) => document.getElementById(id);
const KINDS = {
  // The tokens that attend, and those attended to. A decoder's row sees its inputs,
  // which start one token earlier.
  cross: (a) => [a.target, a.source],
  decoder: (a) => [a.target, ["<s>", ...a.target.slice(0, -1)]],
  encoder: (a) => [a.source, a.source],
};
let nBest = 1;
let source = "";
let attention = null;
let newest = new AbortController(); // of the last request; earlier ones are aborted

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function introduce() {
  const health = await (await fetch("ready")).json();
  nBest = health.n_best;
  if (!$("tag").length) {
    const values = ["", ...health.tags];
    $("tag").append(...values.map((value) => element("option", { value }, value)));
    $("tagged").hidden = !health.tags.length;
  }
  const [from, to] = health.languages;
  $("text").lang = $("examples").lang = from;
  $("translation").lang = $("candidates").lang = to;
  const starting = health.status === "starting";
  const percent = `The model is being compiled: ${health.compiled_percent} %`;
  $("status").textContent = starting ? percent : "";
  if (starting) setTimeout(introduce, 1000);
  const names = new Intl.DisplayNames(["en"], { type: "language" });
  document.title = $("direction").textContent = `${names.of(from)} to ${names.of(to)}`;
}

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: newest.signal,
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Run `work`, which makes requests; show its errors unless a newer one replaces it. */
async function attempt(work) {
  newest.abort();
  const mine = (newest = new AbortController());
  $("status").textContent = "Translating…";
  $("error").textContent = "";
  try {
    await work();
  } catch (error) {
    if (mine === newest) $("error").textContent = `Failed: ${error.message}.`;
  }
  if (mine === newest) $("status").textContent = "";
}

async function translate() {
  const text = $("text").value.trim();
  if (!text) return;
  const tag = $("tag").value;
  const { translations } = await post("translate", { text, tag, n_best: nBest });
  source = tag + text;
  const candidates = translations[0].n_best ?? translations;
  $("candidates").replaceChildren(
    ...candidates.map(({ text, score }) =>
      element("option", { value: text }, `${text || "(nothing)"} (${score.toFixed(2)})`),
    ),
  );
  await showCandidate();
}

async function showCandidate() {
  const target = $("candidates").value;
  $("translation").textContent = target || "(nothing)";
  $("copied").textContent = $("unshown").textContent = "";
  $("answer").hidden = false;
  $("attention").hidden = true;
  try {
    attention = await post("attention", { source, target });
  } catch (error) {
    // The translation stands without it, such as that of a long text.
    if (error.name === "AbortError") throw error;
    $("unshown").textContent = `No attention: ${error.message}.`;
    return;
  }
  for (const option of $("kind").options) option.hidden = !attention[option.value].length;
  if (!attention[$("kind").value].length) $("kind").value = "cross";
  showLayers();
  $("attention").hidden = false;
}

function showLayers() {
  const layers = attention[$("kind").value];
  const chosen = $("layer").value || layers.length - 1;
  $("layer").replaceChildren(
    ...layers.map((_, n) => element("option", { value: n }, `${n + 1}`)),
  );
  $("layer").value = Math.min(chosen, layers.length - 1);
  showTokens();
}

/** The text of a token; SentencePiece marks the start of a word by U+2581. */
function legible(token) {
  const special = { "<s>": "start", "</s>": "end" };
  return special[token] ?? (token.replaceAll("\u2581", " ").trim() || "␣");
}

function appendTokens(node, tokens, make) {
  tokens.forEach((token, index) => {
    if (/^(\u2581|<\/s>$)/.test(token)) node.append(" ");
    node.append(make(legible(token), index));
  });
}

function showTokens() {
  const box = $("tokens").lastElementChild;
  box.replaceChildren();
  appendTokens(box, KINDS[$("kind").value](attention)[0], (text, index) =>
    element(
      "label",
      {},
      element("input", { type: "radio", name: "token", value: index, checked: !index }),
      text,
    ),
  );
  showHeads();
}

function showHeads() {
  const tokens = KINDS[$("kind").value](attention)[1];
  const query = document.querySelector("[name=token]:checked").value;
  const heads = attention[$("kind").value][$("layer").value];
  $("heads").replaceChildren(
    ...heads.map((rows, head) => {
      const percents = rows[query].map((weight) => Math.round(weight / 10));
      const most = rows[query].indexOf(Math.max(...rows[query]));
      const line = element("p", { ariaHidden: "true" });
      appendTokens(line, tokens, (text, index) => {
        const token = element("mark", { title: `${text}: ${percents[index]} %` }, text);
        token.style.background = `rgb(var(--heat) / ${rows[query][index] / 1000})`;
        return token;
      });
      const summary = `most: ${legible(tokens[most])} ${percents[most]} %`;
      const name = element("b", {}, `Head ${head + 1}`);
      return element("li", {}, name, " ", element("span", {}, summary), line);
    }),
  );
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(translate);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("tokens").addEventListener("mouseover", ({ target }) => {
  const input = target.closest("label")?.firstElementChild;
  if (!input || input.checked) return;
  input.checked = true;
  showHeads();
});
$("candidates").addEventListener("change", () => attempt(showCandidate));
$("kind").addEventListener("change", showLayers);
$("layer").addEventListener("change", showHeads);
$("tokens").addEventListener("change", showHeads);
$("copy").addEventListener("click", async () => {
  const text = $("candidates").value;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Only pages of https and of loopback may use the clipboard.
    getSelection().selectAllChildren($("translation"));
    document.execCommand("copy");
  }
  $("copied").textContent = "copied";
});

async function showExamples() {
  const examples = await (await fetch("examples")).json();
  $("try").hidden = !examples.length;
  $("examples").replaceChildren(
    ...examples.map((text) => {
      const button = element("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        $("text").value = text;
        if (text.startsWith(">>")) $("tag").value = ""; // it has a tag of its own
        $("form").requestSubmit();
      });
      return element("li", {}, button);
    }),
  );
}

introduce();
showExamples();
