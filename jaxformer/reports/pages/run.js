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
