// The documentation of the API, generated from /openapi.json.

import { byId, element } from "./dom.js";

let schemas = {};

const named = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema);

function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {})}`;
  if (schema.additionalProperties) return `object of ${kind(schema.additionalProperties)}`;
  return schema.type ?? "any";
}

function table(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, name)),
      element("td", {}, kind(field)),
      element("td", {}, (schema.required ?? []).includes(name) ? "required" : "optional"),
      element("td", {}, field.description ?? ""),
    ),
  );
  const heads = ["field", "type", "presence", "description"].map((text) => element("th", { scope: "col" }, text));
  return element("div", { class: "scroll" }, element("table", {}, element("tr", {}, ...heads), ...rows));
}

function example(path, schema) {
  const fields = Object.entries(schema.properties).filter(([name]) => schema.required.includes(name));
  const body = Object.fromEntries(fields.map(([name, field]) => [name, field.examples?.[0] ?? "…"]));
  return `curl ${location.origin}${path} -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body)}'`;
}

function operation(path, method, about) {
  const parts = [
    element("h2", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
    element("p", {}, about.summary ?? ""),
    element("p", {}, about.description ?? ""),
  ];
  const asked = named(about.requestBody?.content["application/json"]?.schema);
  if (asked) parts.push(element("h3", {}, "Request"), table(asked), element("pre", {}, example(path, asked)));
  for (const [status, answer] of Object.entries(about.responses)) {
    const schema = answer.content?.["application/json"]?.schema;
    parts.push(
      element(
        "p",
        {},
        element("strong", {}, status),
        " ",
        element("code", {}, schema ? kind(schema) : ""),
        ` ${answer.description}`,
      ),
    );
  }
  return element("section", { class: "panel" }, ...parts);
}

async function describe() {
  const description = await (await fetch("openapi.json")).json();
  schemas = description.components?.schemas ?? {};
  byId("title").textContent = `${description.info.title} ${description.info.version}: API`;
  byId("about").textContent = description.info.description ?? "";
  const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => operation(path, method, about)),
  );
  const objects = Object.entries(schemas).map(([name, schema]) =>
    element(
      "section",
      { class: "panel" },
      element("h3", {}, name),
      element("p", {}, schema.description ?? ""),
      table(schema),
    ),
  );
  byId("operations").replaceChildren(...operations, element("h2", {}, "Objects"), ...objects);
}

describe().catch(() => {
  byId("operations").textContent = "The server does not answer: is it still running?";
});
