// Configuration: every effective value with its origin, from /config.

import { copyButton, errorBox, h, withCode } from "./dom.js";
import { getJson } from "./server.js";

const LAYERS = { rule: "decided", model: "model's files" }; // other layers have their own name
const RELOADS = { hot: "can change while the server runs", model: "changes when the model is loaded again", process: "changes with a new start" };

export function configView() {
  const search = h("input", { type: "search", id: "config-search", placeholder: "Search options, values and origins", "aria-label": "Search the configuration", autocomplete: "off", spellcheck: "false" });
  const onlySet = h("input", { type: "checkbox" });
  const number = h("p", { class: "note", role: "status" });
  const about = h("p", { class: "note hash" });
  const format = h("p", { class: "note" });
  const list = h("div", { class: "options" });
  const element = h("section", { class: "page config", "aria-labelledby": "config-title" },
    h("div", { class: "page-head" }, h("h1", { id: "config-title" }, "Configuration"), about), format,
    h("div", { class: "filter" }, search, h("label", { class: "check" }, onlySet, h("span", {}, "only values that are not the default")), number),
    list);
  let rows = [];

  search.addEventListener("input", draw);
  onlySet.addEventListener("change", draw);

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) => (!onlySet.checked || row.isSet) && words.every((word) => row.text.includes(word)));
    const sections = new Map();
    for (const row of shown) {
      if (!sections.has(row.section)) sections.set(row.section, []);
      sections.get(row.section).push(row.element);
    }
    list.replaceChildren(...[...sections].map(([name, elements]) => section(name, elements)));
    if (rows.length) number.textContent = `${shown.length} of ${rows.length} options`;
    if (rows.length && !shown.length) list.replaceChildren(h("p", { class: "note" }, "No option contains these words."));
  }

  async function read() {
    try {
      const answer = await getJson("config");
      rows = answer.values.map(rowOf);
      about.replaceChildren(`${answer.model}, configuration ${answer.hash.slice(0, 19)} `, copyButton("Copy the hash", () => answer.hash));
      format.replaceChildren(...formatOf(answer.answers));
      draw();
    } catch (error) {
      rows = [];
      number.textContent = "";
      list.replaceChildren(errorBox(error));
    }
  }

  document.addEventListener("key-changed", () => !element.hidden && read());
  return { element, shown: read };
}

// In which the model writes calls of tools and reasoning, and why the server reads them so.
function formatOf(answers) {
  if (!answers) return [];
  const { tool_calls, tool_calls_why, reasoning, reasoning_why } = answers;
  return withCode(`Tool calls: ${tool_calls} (${tool_calls_why}). Reasoning: ${reasoning} (${reasoning_why}).`);
}

function section(name, elements) {
  const id = `section-${name}`;
  return h("section", { "aria-labelledby": id }, h("h2", { id }, name), ...elements);
}

// Opens to what the option means.
function rowOf({ path, value, origin, overridden, reload, description }) {
  const [section, ...names] = path.split(".");
  const layer = LAYERS[origin.layer] ?? origin.layer;
  const isSet = origin.layer !== "default";
  const origins = [origin.text, ...overridden.map((old) => `instead of ${shown(old.value)} from ${old.origin.text}`)];
  const element = h("details", { class: "option" },
    h("summary", {}, h("code", { class: "option-name" }, h("span", { class: "option-section" }, `${section}.`), names.join(".")),
      h("code", { class: "option-value" }, shown(value)),
      h("span", { class: "option-origin" }, h("span", { class: `badge ${isSet ? "is-set" : ""}` }, layer),
        ...(isSet ? origins.map((text) => h("span", {}, text)) : []))),
    h("p", { class: "option-meaning" }, ...withCode(description), ` It ${RELOADS[reload] ?? reload}.`));
  return { section, isSet, element, text: [path, shown(value), layer, ...origins, description].join(" ").toLowerCase() };
}

function shown(value) {
  return typeof value === "string" ? value || '""' : JSON.stringify(value);
}
