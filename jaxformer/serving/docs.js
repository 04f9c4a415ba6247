"use strict";

// The page of documentation: openapi.json as headings, tables and examples.

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function table(head, rows) {
  const line = (kind) => (cells) => element("tr", ...cells.map((cell) => element(kind, cell)));
  return element("table", line("th")(head), ...rows.map(line("td")));
}

const json = (value) => element("pre", JSON.stringify(value, null, 2));

function operation(method, path, { summary, description, requestBody, responses }) {
  const parts = [element("h2", `${method.toUpperCase()} ${path}`), element("p", summary)];
  if (description) parts.push(element("p", description));
  for (const { schema, example } of Object.values(requestBody?.content ?? {}).slice(0, 1)) {
    for (const each of schema.oneOf ?? [schema]) {
      if (each.title) parts.push(element("h3", each.title));
      const rows = Object.entries(each.properties).map(([name, own]) => [
        name, (each.required ?? []).includes(name) ? "required" : "", own.description ?? "",
      ]);
      parts.push(table(["field", "", "meaning"], rows));
      if (each.example ?? example) parts.push(json(each.example ?? example));
    }
  }
  const answers = Object.entries(responses).map(([status, own]) => [status, own.description]);
  parts.push(table(["status", "meaning"], answers));
  for (const { example, examples } of Object.values(responses[200].content ?? {}))
    for (const value of examples ? Object.values(examples).map((each) => each.value) : [example])
      if (value !== undefined) parts.push(json(value));
  return element("section", ...parts);
}

async function show() {
  const { info, paths } = await (await fetch("openapi.json")).json();
  document.getElementById("summary").textContent = info.description;
  for (const [path, methods] of Object.entries(paths))
    for (const [method, own] of Object.entries(methods))
      document.getElementById("paths").append(operation(method, path, own));
}

show();
