// The OpenAPI document, drawn as one section per operation.

const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  element.textContent = text ?? "";
  element.append(...children);
  return element;
};

const kind = (schema) => schema.type || schema.$ref?.split("/").pop() || (schema.anyOf || []).map(kind).join(" or ") || "any";

function rows(title, fields) {
  const table = make("table");
  for (const [name, type, text] of fields) table.append(make("tr", "", make("td", "", make("code", name)), make("td", type), make("td", text || "")));
  return fields.length ? [make("h3", title), table] : [];
}

const fields = (schema) => Object.entries(schema?.properties || {}).map(([name, s]) => [name, kind(s), s.description ?? (s.default === undefined || s.default === null ? "" : `default ${JSON.stringify(s.default)}`)]);

const { paths, components } = await (await fetch("/openapi.json")).json();
for (const [path, methods] of Object.entries(paths))
  for (const [method, operation] of Object.entries(methods)) {
    const content = operation.requestBody?.content || {};
    document.getElementById("docs").append(make("section", "",
      make("h2", "", make("code", `${method.toUpperCase()} ${path}`)),
      make("p", operation.description),
      ...rows("Parameters", (operation.parameters || []).map((p) => [p.name, kind(p.schema), `${p.in}${p.required ? ", required" : ""}`])),
      ...rows("JSON body", fields(content["application/json"]?.schema)),
      ...rows("Replies", Object.entries(operation.responses).map(([code, r]) => [code, "", r.description]))));
  }
for (const name of ["Target", "Condition"])
  document.getElementById("docs").append(make("section", "", make("h2", name), ...rows("Fields", fields(components.schemas[name]))));
