// What the service answers, from its own OpenAPI description; nothing is fetched from elsewhere.
import { $, make, say } from "./dom.js";
import { get } from "./api.js";

/** A schema in which names of other schemas are written out, to a depth. */
function written(schema, all, depth = 4) {
  if (Array.isArray(schema)) return schema.map((part) => written(part, all, depth));
  if (schema === null || typeof schema !== "object") return schema;
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return depth ? written(all[name], all, depth - 1) : name;
  }
  return Object.fromEntries(Object.entries(schema).filter(([key]) => key !== "title")
    .map(([key, part]) => [key, written(part, all, depth)]));
}

const folded = (title, content) => make("details", {}, make("summary", {}, title),
  make("pre", { class: "scroll", tabindex: "0" }, JSON.stringify(content, null, 2)));

function operation(path, method, about, all) {
  const body = about.requestBody?.content?.["application/json"]?.schema;
  const answer = about.responses?.["200"]?.content?.["application/json"]?.schema;
  const words = (about.parameters ?? []).map((one) => make("li", {},
    make("b", {}, one.name), one.required ? " (needed) " : " ",
    one.description ?? one.schema?.description ?? ""));
  return make("section", { class: "card" },
    make("h2", {}, `${method.toUpperCase()} ${path}`),
    make("p", {}, about.description ?? about.summary ?? ""),
    words.length ? make("ul", {}, ...words) : null,
    body ? folded("What it takes", written(body, all)) : null,
    answer ? folded("What it gives", written(answer, all)) : null);
}

async function start() {
  const spec = await get("/openapi.json");
  const all = spec.components?.schemas ?? {};
  $("paths").replaceChildren(...Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => operation(path, method, about, all))));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => say($("alert"), error.message));
