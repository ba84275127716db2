// The settings of the chat: system prompt, sampling, tools, and any other field of a request as JSON.

import { h } from "./dom.js";
import { load, save } from "./store.js";

const NUMBERS = [
  ["temperature", "0 takes the most likely token", { min: 0, max: 2 }],
  ["top_p", "samples among the tokens that reach this probability", { min: 0, max: 1 }],
  ["top_k", "samples among this number of tokens", { min: -1, isWhole: true }],
  ["min_p", "minimum probability, relative to the best token's", { min: 0, max: 1 }],
  ["repetition_penalty", "more than 1 avoids repetitions", { min: 0, max: 10 }],
  ["max_completion_tokens", "maximum length of an answer", { min: 1, isWhole: true }],
  ["seed", "repeats an answer", { isWhole: true }],
];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh"];
export const SAMPLE_TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Current weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const EMPTY = { model: "", system: "", fields: {}, toolsText: "", moreText: "" };

export class Settings {
  constructor() {
    this._kept = { ...EMPTY, ...load("settings", {}) };
    this._inputs = new Map();
    this._capabilities = {}; // of the model, as /v1/models has them
    this.element = h("form", { class: "settings", id: "settings", "aria-label": "Settings" });
    this.element.addEventListener("submit", (event) => event.preventDefault());
    this.element.addEventListener("input", () => this._read());
    this._build();
  }

  // What `requestOf` takes. Throws an Error for JSON that cannot be used.
  value() {
    const { model, system, fields } = this._kept;
    const tools = parsedTools(this._kept.toolsText);
    const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
    const more = parsed(this._kept.moreText, "Other fields", isObject, "an object");
    return { model, system, fields, tools, more: more ?? {} };
  }

  // models: the objects of /v1/models.
  setModels(models) {
    const names = models.map((model) => model.id);
    if (!names.includes(this._kept.model)) this._kept.model = names[0] ?? "";
    this._model.replaceChildren(...names.map((name) => h("option", { selected: name === this._kept.model }, name)));
    this._model.closest("label").hidden = names.length < 2;
    const served = models.find((model) => model.id === this._kept.model);
    this._capabilities = served?.capabilities ?? {};
    const defaults = served?.sampling_defaults ?? {};
    for (const [name] of NUMBERS) {
      this._inputs.get(name).placeholder = name in defaults ? String(defaults[name]) : "default";
    }
  }

  get model() {
    return this._kept.model;
  }

  // Whether a request can have the sample tool: the model calls tools, and the tools and fields of the user allow it.
  get allowsSampleTool() {
    if (this._capabilities.tools === false) return false;
    try {
      const { tools, more } = this.value();
      return (!tools.length || tools.some(isSampleTool)) && !("tools" in more) && !("tool_choice" in more);
    } catch {
      return false; // the user is writing
    }
  }

  get _hasNoTools() {
    try {
      return !parsedTools(this._kept.toolsText).length;
    } catch {
      return false; // the user is writing
    }
  }

  addSampleTool() {
    if (!this._hasNoTools) return;
    this._tools.value = JSON.stringify([SAMPLE_TOOL], null, 2);
    this._tools.closest("details").open = true;
    this._read();
  }

  _build() {
    const { system, fields, toolsText, moreText } = this._kept;
    this._model = h("select", { name: "model" });
    this._system = h("textarea", { rows: 4, spellcheck: "true", placeholder: "How the model shall answer" }, system);
    const numbers = NUMBERS.map(([name, hint, { min, max, isWhole }]) => {
      const input = h("input", { type: "number", name, min, max, step: isWhole ? 1 : "any", value: fields[name], title: hint });
      this._inputs.set(name, input);
      return h("label", {}, h("span", {}, name), input);
    });
    this._effort = h("select", { name: "reasoning_effort", title: "how much the model thinks, if it can" },
      h("option", { value: "" }, "default"),
      ...EFFORTS.map((each) => h("option", { selected: each === fields.reasoning_effort }, each)));
    this._tools = h("textarea", { rows: 8, class: "code-input", spellcheck: "false", "aria-describedby": "tools-note" }, toolsText);
    this._more = h("textarea", { rows: 3, class: "code-input", spellcheck: "false",
      placeholder: '{"stop": ["\\n\\n"]}' }, moreText);
    this._sample = h("button", { type: "button", class: "quiet", disabled: !this._hasNoTools, onclick: () => this.addSampleTool() },
      "Use a sample tool");
    this._toolsProblem = h("p", { class: "error-text", role: "alert" });
    this._moreProblem = h("p", { class: "error-text", role: "alert" });
    this.element.append(
      h("label", {}, h("span", {}, "Model"), this._model),
      h("label", {}, h("span", {}, "System prompt"), this._system),
      h("fieldset", { class: "grid" }, h("legend", {}, "Sampling"), ...numbers,
        h("label", {}, h("span", {}, "reasoning_effort"), this._effort)),
      h("details", { open: Boolean(toolsText) }, h("summary", {}, "Tools"),
        h("p", { class: "note", id: "tools-note" }, "Functions that the model may call, as in the field ",
          h("code", {}, "tools"), ". You answer each call by hand."),
        h("label", {}, h("span", { class: "hidden" }, "Tools as JSON"), this._tools), this._toolsProblem, this._sample),
      h("details", { open: Boolean(moreText) }, h("summary", {}, "Other fields"),
        h("label", {}, h("span", {}, "Fields of the request, as a JSON object"), this._more), this._moreProblem),
      h("button", { type: "button", class: "quiet", onclick: () => this._reset() }, "Reset the settings"),
    );
  }

  _read() {
    const fields = {};
    for (const [name, input] of this._inputs) {
      if (input.value !== "") fields[name] = Number(input.value);
    }
    if (this._effort.value) fields.reasoning_effort = this._effort.value;
    this._kept = { model: this._model.value || this._kept.model, system: this._system.value, fields,
      toolsText: this._tools.value, moreText: this._more.value };
    save("settings", this._kept);
    this._sample.disabled = !this._hasNoTools;
    this._toolsProblem.textContent = this._moreProblem.textContent = "";
    try {
      this.value();
    } catch (error) {
      (error.message.startsWith("Tools") ? this._toolsProblem : this._moreProblem).textContent = error.message;
    }
  }

  _reset() {
    const { model } = this._kept;
    this._kept = { ...EMPTY, model };
    const options = [...this._model.childNodes];
    const placeholders = NUMBERS.map(([name]) => this._inputs.get(name).placeholder);
    this.element.replaceChildren();
    this._build();
    this._model.append(...options);
    this._model.closest("label").hidden = options.length < 2;
    NUMBERS.forEach(([name], index) => (this._inputs.get(name).placeholder = placeholders[index]));
    this.element.dispatchEvent(new Event("input"));
    save("settings", null);
  }
}

function parsedTools(text) {
  return parsed(text, "Tools", Array.isArray, "a list of tools") ?? [];
}

function isSampleTool(tool) {
  return tool?.function?.name === SAMPLE_TOOL.function.name;
}

function parsed(text, name, isRight, form) {
  if (!text.trim()) return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  if (!isRight(value)) throw new Error(`${name}: must be ${form}`);
  return value;
}
