// The API: every route of this deployment with its fields, an example, and a form to try it. From /openapi.json.

import { announce, copyButton, errorBox, h, withCode } from "./dom.js";
import { call, getJson, key } from "./server.js";

const GROUPS = [["Files and batches", /^\/v1\/(files|batches)/], ["Models and answers", /^(\/inference)?\/v1\//], ["The server", /^/]];
const MAX_SHOWN = 200_000; // characters of a response

export function docsView() {
  const search = h("input", { type: "search", placeholder: "Search routes and fields", "aria-label": "Search the API", autocomplete: "off", spellcheck: "false" });
  const list = h("div", { class: "routes" });
  const about = h("p", { class: "note" });
  const element = h("section", { class: "page docs", "aria-labelledby": "docs-title" },
    h("div", { class: "page-head" }, h("h1", { id: "docs-title" }, "API"), about),
    h("div", { class: "filter" }, search), list);
  let routes = [];

  search.addEventListener("input", draw);

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    for (const route of routes) {
      route.element.hidden = !words.every((word) => route.text.includes(word));
      number += Number(!route.element.hidden);
    }
    if (words.length) announce(`${number} of ${routes.length} routes`);
  }

  async function read() {
    try {
      const description = await getJson("openapi.json");
      routes = operationsOf(description).map((operation) => new Route(operation, description));
      const groups = Map.groupBy(routes, ({ path }) => GROUPS.find(([, begins]) => begins.test(path))[0]);
      list.replaceChildren(...GROUPS.filter(([name]) => groups.has(name)).map(([name]) =>
        h("section", {}, h("h2", {}, name), ...groups.get(name).map((route) => route.element))));
      about.replaceChildren(`Version ${description.info.version}. OpenAPI document: `, fileOf(description));
      draw();
      openNamed(routes);
    } catch (error) {
      list.replaceChildren(errorBox(error));
    }
  }

  document.addEventListener("key-changed", () => !element.hidden && read());
  read();
  return { element };
}

// A link to what was read: the address itself would need the key, which a link does not send.
function fileOf(description) {
  const content = new Blob([JSON.stringify(description, null, 2)], { type: "application/json" });
  return h("a", { href: URL.createObjectURL(content), download: "openapi.json" }, "openapi.json");
}

// The route that the address names, such as /docs#post_v1_completions.
function openNamed(routes) {
  const named = routes.find((route) => `#${route.element.id}` === location.hash);
  if (!named) return;
  named.element.open = true;
  named.element.scrollIntoView();
}

function operationsOf(description) {
  return Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), ...operation })));
}

class Route {
  constructor(operation, description) {
    const { path, method, summary, security, operationId } = operation;
    const media = Object.values(operation.requestBody?.content ?? {})[0];
    const schema = media && resolved(media.schema, description);
    this.path = path;
    this.text = [method, path, summary, ...Object.keys(schema?.properties ?? {})].join(" ").toLowerCase();
    this.element = h("details", { class: "route", id: operationId },
      h("summary", {}, h("span", { class: `method method-${method.toLowerCase()}` }, method), h("code", { class: "path" }, path),
        h("span", { class: "route-summary" }, summary), security?.length ? h("span", { class: "badge", title: "needs an API key" }, "key") : null));
    this.element.addEventListener("toggle", () => this._fill(operation, schema, media, description), { once: true });
  }

  // Written when the route is opened first.
  _fill(operation, schema, media, description) {
    this.element.append(h("div", { class: "route-body" },
      tryForm(operation, schema, media && exampleOf(media, schema, description)), answers(operation),
      schema ? h("h3", {}, "Fields") : null, schema ? fieldTable(schema, description) : null));
  }
}

function resolved(schema, description) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

function exampleOf(media, schema, description) {
  return media.example ?? filler(schema, description, 0);
}

// The required fields, with a value of their type.
function filler(schema, description, depth) {
  const found = resolved(schema.anyOf?.[0] ?? schema, description);
  if (found.examples?.length) return found.examples[0];
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  if (found.type === "object" || found.properties) {
    const names = depth > 4 ? [] : (found.required ?? []);
    return Object.fromEntries(names.map((name) => [name, filler(found.properties[name], description, depth + 1)]));
  }
  if (found.type === "array") return found.items && found.minItems ? [filler(found.items, description, depth + 1)] : [];
  return { integer: 1, number: 1, boolean: true, null: null }[found.type] ?? "text";
}

function fieldTable(schema, description, level = 0) {
  const required = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {}).sort((one, other) => required.has(other) - required.has(one));
  const rows = names.flatMap((name) => {
    const field = schema.properties[name];
    const inner = level < 2 ? objectOf(field, description) : null;
    return [h("tr", {}, h("td", {}, h("code", {}, name), required.has(name) ? h("span", { class: "required" }, " required") : null),
      h("td", { class: "type" }, typeOf(field)),
      h("td", {}, ...withCode(field.description ?? ""), inner ? h("details", {}, h("summary", {}, "its fields"), fieldTable(inner, description, level + 1)) : null))];
  });
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...["field", "type", "meaning"].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, ...rows));
  return h("div", { class: "wide" }, table);
}

// The object that a field is, or contains a list of.
function objectOf(field, description) {
  for (const each of [field, ...(field.anyOf ?? [])]) {
    const found = resolved(each.items ?? each, description);
    if (found?.properties && Object.keys(found.properties).length) return found;
  }
  return null;
}

function typeOf(field) {
  if (field.anyOf) return field.anyOf.filter((each) => each.type !== "null").map(typeOf).join(" or ");
  if (field.$ref) return field.$ref.split("/").at(-1);
  if (field.const !== undefined) return JSON.stringify(field.const);
  if (field.enum) return field.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (field.type === "array") return `list of ${typeOf(field.items ?? {})}`;
  const [least, most] = [field.minimum ?? field.exclusiveMinimum, field.maximum ?? field.exclusiveMaximum];
  const range = least !== undefined && most !== undefined && most < 2 ** 31 - 1 ? `, ${least} to ${most}` : "";
  return (field.type ?? "anything") + range;
}

function answers({ responses }) {
  const types = Object.keys(responses?.["200"]?.content ?? {});
  return h("p", { class: "note" }, "Answers ", ...types.flatMap((type, index) => [index ? " or " : "", h("code", {}, type)]),
    ". Errors are ", h("code", {}, '{"error": {"message", "type", "param", "code"}}'), ".");
}

function tryForm({ path, method, parameters, requestBody }, schema, example) {
  const isForm = Boolean(requestBody?.content["multipart/form-data"]);
  const inputs = (parameters ?? []).map(({ name, in: place, required }) =>
    h("input", { name, required, "data-place": place, autocomplete: "off", spellcheck: "false" }));
  const fields = isForm ? Object.entries(schema.properties).map(([name, field]) => formField(name, field)) : [];
  const body = requestBody && !isForm ? h("textarea", { class: "code-input", rows: 10, spellcheck: "false" }, JSON.stringify(example, null, 2)) : null;
  const output = h("div", { class: "response", "aria-live": "polite" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const request = () => ({ method, path: targetOf(path, inputs), body: isForm ? dataOf(fields) : body?.value });
  const form = h("form", { class: "try", "aria-label": `Try ${method} ${path}` }, h("h3", {}, "Try it"),
    ...[...inputs, ...fields].map((input) => h("label", {}, h("span", {}, input.name, input.required ? "" : " (optional)"), input)),
    body ? h("label", {}, h("span", {}, "Body"), body) : null,
    h("div", { class: "row" }, send, stop, copyButton("Copy as curl", () => curl(request()), true)), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const running = new AbortController();
    stop.onclick = () => running.abort();
    stop.hidden = false;
    send.disabled = true;
    try {
      await show(output, request(), running.signal);
    } finally {
      stop.hidden = true;
      send.disabled = false;
    }
  });
  return form;
}

function formField(name, field) {
  const type = field.format === "binary" ? "file" : "text";
  return h("input", { name, type, required: true, value: field.const, autocomplete: "off" });
}

function dataOf(fields) {
  const data = new FormData();
  for (const field of fields) data.append(field.name, field.type === "file" ? (field.files[0] ?? "") : field.value);
  return data;
}

function targetOf(path, inputs) {
  const query = new URLSearchParams();
  let target = path;
  for (const { name, value, dataset } of inputs) {
    if (dataset.place === "path") target = target.replace(`{${name}}`, encodeURIComponent(value));
    else if (value) query.set(name, value);
  }
  return query.size ? `${target}?${query}` : target;
}

// The response as it arrives; JSON that is complete, with indentation.
async function show(output, { method, path, body }, signal) {
  const began = performance.now();
  const text = h("code");
  const head = h("p", { class: "response-head" });
  output.replaceChildren(head, h("pre", { tabindex: "0" }, text));
  const state = (status) => (head.textContent = `${status} · ${Math.round(performance.now() - began)} ms`);
  try {
    const response = await call(method, path.slice(1), { body, signal });
    const status = `HTTP ${response.status} ${response.headers.get("content-type") ?? ""}`;
    state(status);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let whole = ""; ; ) {
      const { value, done } = await reader.read();
      if (!done) whole += value;
      text.textContent = (done ? indented(whole) : whole).slice(0, MAX_SHOWN);
      if (done) break;
    }
    state(status);
    if (response.status === 401) document.dispatchEvent(new Event("key-needed"));
  } catch (error) {
    if (error.name === "AbortError") state("stopped");
    else output.replaceChildren(errorBox(error));
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function curl({ method, path, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const address = new URL(path.slice(1), document.baseURI).href;
  const parts = ["curl", ...(method === "GET" ? [] : ["-X", method]), quoted(address)];
  if (key.get()) parts.push("-H", quoted("Authorization: Bearer YOUR_KEY"));
  if (typeof body === "string") parts.push("-H", quoted("Content-Type: application/json"), "-d", quoted(body));
  else if (body) for (const [name, value] of body) parts.push("-F", quoted(`${name}=${value.name ? `@${value.name}` : value}`));
  return parts.join(" ");
}
