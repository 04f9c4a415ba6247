"use strict";

const $ = (id) => document.getElementById(id);
const KINDS = {
  // The tokens that attend, and those attended to. A decoder's row sees its inputs,
  // which start one token earlier.
  cross: (a) => [a.target, a.source],
  decoder: (a) => [a.target, ["<s>", ...a.target.slice(0, -1)]],
  encoder: (a) => [a.source, a.source],
};
const WIDE = /[、。！，：；？]$/; // no space follows
let about = { n_best: 1, languages: ["en", "en"] };
// Of the translation: { source, translations, chosen: its alternative, node, mark },
// where `mark` is the source's place in the mirror, if it is found.
let sentences = [];
let shown = null; // the sentence whose alternatives and attention are shown
let attention = null;
let newest = new AbortController(); // of the last translation; earlier ones are aborted
let inspected = new AbortController(); // of the last attention

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function introduce() {
  about = await (await fetch("health")).json();
  if (!$("tag").length) {
    const values = ["", ...about.tags];
    $("tag").append(...values.map((value) => element("option", { value }, value)));
    $("tagged").hidden = !about.tags.length;
  }
  $("keyed").hidden = !about.api_keys;
  const [from, to] = about.languages;
  $("text").lang = $("examples").lang = from;
  $("translation").lang = $("alternatives").lang = to;
  $("progress").textContent = about.status === "starting" ? "starting; please wait"
    : about.compiling ? "just started: short texts are translated at once, long ones take longer" : "";
  if (about.compiling) setTimeout(introduce, 1000);
  const names = new Intl.DisplayNames(["en"], { type: "language" });
  const [source, target] = [names.of(from), names.of(to)];
  document.title = $("direction").textContent = `${source} to ${target}`;
  [$("from").textContent, $("to").textContent] = [source, target];
}

function authorization() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function post(path, body, { signal }) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...authorization() },
    body: JSON.stringify(body),
    signal,
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// The text and its translation -------------------------------------------------------

async function translate() {
  const text = $("text").value;
  newest.abort();
  const mine = (newest = new AbortController());
  $("status").textContent = $("error").textContent = $("copied").textContent = "";
  if (!text.trim()) return showTranslation("", []);
  $("status").textContent = "Translating…";
  try {
    const tag = $("tag").value;
    const body = { text: tag ? text.trimStart() : text, tag, n_best: about.n_best, sentences: true };
    const { translations } = await post("translate", body, mine);
    if (mine === newest) showTranslation(text, translations[0].sentences);
  } catch (error) {
    if (mine === newest) $("error").textContent = `Failed: ${error.message}.`;
  }
  if (mine === newest) $("status").textContent = "";
}

function showTranslation(text, lines) {
  sentences = [];
  $("translation").replaceChildren();
  lines.forEach((line, number) => {
    if (number) $("translation").append("\n");
    for (const each of line) {
      const node = element("span", { role: "button", tabIndex: sentences.length ? -1 : 0 });
      if (each !== line[0] && !WIDE.test($("translation").textContent)) $("translation").append(" ");
      $("translation").append(node);
      sentences.push({ ...each, chosen: 0, node });
      showText(sentences.at(-1));
    }
  });
  linkSources($("text").value === text ? text : "");
  $("answer").hidden = $("sentence").hidden = !sentences.length;
  shown = null;
  if (sentences.length) choose(sentences[0]);
}

function showText(sentence) {
  const { text, words } = sentence.translations[sentence.chosen];
  sentence.node.replaceChildren(...(text ? shaded(text, words) : ["(nothing)"]));
}

/** Mark each sentence's source in the mirror of the text box; "": none is found. */
function linkSources(text) {
  const parts = [];
  let at = 0;
  for (const sentence of sentences) {
    const words = sentence.source.replace(/^>>[^<\s]+<</, "").trim().split(/\s+/);
    const escaped = words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    const found = new RegExp(escaped.join("\\s+")).exec(text.slice(at));
    sentence.mark = found && text ? element("span", {}, found[0]) : null;
    if (!sentence.mark) continue;
    parts.push(text.slice(at, at + found.index), sentence.mark);
    sentence.begin = at + found.index;
    at = sentence.end = sentence.begin + found[0].length;
  }
  $("mirror").replaceChildren(...parts, ($("text").value.slice(at) || "") + "\n");
}

/** Show which source and which translation belong together; null: none. */
function link(sentence) {
  for (const each of sentences) {
    each.node.classList.toggle("linked", each === sentence);
    each.mark?.classList.toggle("linked", each === sentence);
  }
}

const atPoint = ({ clientX: x, clientY: y }) =>
  sentences.find(({ mark }) => [...(mark?.getClientRects() ?? [])].some(
    (box) => box.left <= x && x <= box.right && box.top <= y && y <= box.bottom));
const atCaret = () => {
  const at = $("text").selectionStart;
  return sentences.find(({ mark, begin, end }) => mark && begin <= at && at <= end);
};
const ofNode = (node) => sentences.find((each) => each.node === node.closest("[role=button]"));

/** The text as nodes, in which words are shaded by their probability. */
function shaded(text, words) {
  const nodes = [];
  let at = 0;
  for (const { word, log_probability } of words) {
    const begin = text.indexOf(word, at);
    const probability = Math.exp(log_probability);
    const title = `${word}: ${Math.round(100 * probability)} %`;
    const node = element("span", { className: "word", title }, word);
    if (probability < 0.95) node.style.background = `rgb(var(--heat) / ${1 - probability})`;
    nodes.push(text.slice(at, begin), node);
    at = begin + word.length;
  }
  return [...nodes, text.slice(at)];
}

// The chosen sentence ----------------------------------------------------------------

function choose(sentence) {
  shown = sentence;
  for (const each of sentences) each.node.ariaPressed = each === sentence;
  $("alternatives").hidden = sentence.translations.length < 2;
  $("alternatives").lastElementChild.replaceChildren(
    ...sentence.translations.map(({ text, score }, index) => {
      const checked = index === sentence.chosen;
      const input = element("input", { type: "radio", name: "alternative", value: index, checked });
      const number = element("span", { className: "soft" }, score.toFixed(2).replace("-", "\u2212"));
      return element("label", {}, input, element("span", {}, text || "(nothing)"), number);
    }),
  );
  return showAttention();
}

function chooseAlternative({ target }) {
  shown.chosen = Number(target.value);
  $("copied").textContent = "";
  showText(shown);
  return showAttention();
}

async function showAttention() {
  inspected.abort();
  const mine = (inspected = new AbortController());
  const { source, source_tokens, translations, chosen } = shown;
  const { text, tokens } = translations[chosen];
  const isLong = Math.max(tokens, source_tokens) > about.pair_tokens;
  $("attention").hidden = true;
  $("unshown").textContent = !about.attention ? "This model has no attention to show."
    : isLong ? `Attention is shown of up to ${about.pair_tokens} pieces; this sentence has more.` : "";
  if ($("unshown").textContent) return;
  try {
    attention = await post("attention", { source, target: text }, mine);
  } catch (error) {
    if (error.name !== "AbortError") $("unshown").textContent = `No attention: ${error.message}.`;
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

// Events -----------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("text").addEventListener("input", ({ target }) => { // it is another text now
  if (target.value.trim()) linkSources("");
  else translate(); // clears the translation
});
$("text").addEventListener("mousemove", (event) => link(atPoint(event)));
$("text").addEventListener("mouseleave", () => link(null));
$("text").addEventListener("keyup", () => link(atCaret()));
$("text").addEventListener("blur", () => link(null));
$("translation").addEventListener("mouseover", ({ target }) => link(ofNode(target)));
$("translation").addEventListener("mouseleave", () => link(null));
$("translation").addEventListener("focusin", ({ target }) => link(ofNode(target)));
$("translation").addEventListener("focusout", () => link(null));
$("translation").addEventListener("click", ({ target }) => {
  const sentence = ofNode(target);
  if (sentence) choose(sentence);
});
$("translation").addEventListener("keydown", (event) => {
  const at = sentences.indexOf(ofNode(event.target));
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1 }[event.key];
  if (event.key === "Enter" || event.key === " ") choose(sentences[at]);
  else if (!sentences[to]) return;
  else {
    sentences[at].node.tabIndex = -1;
    sentences[to].node.tabIndex = 0;
    sentences[to].node.focus();
  }
  event.preventDefault();
});
$("tokens").addEventListener("mouseover", ({ target }) => {
  const input = target.closest("label")?.firstElementChild;
  if (!input || input.checked) return;
  input.checked = true;
  showHeads();
});
$("alternatives").addEventListener("change", chooseAlternative);
$("kind").addEventListener("change", showLayers);
$("layer").addEventListener("change", showHeads);
$("tokens").addEventListener("change", showHeads);
$("shade").addEventListener("change", showShades);
function showShades() {
  document.body.classList.toggle("shaded", $("shade").checked);
}
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("translation").textContent);
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
        linkSources("");
        if (text.startsWith(">>")) $("tag").value = ""; // it has a tag of its own
        $("form").requestSubmit();
      });
      return element("li", {}, button);
    }),
  );
}

linkSources("");
showShades();
introduce();
showExamples();
