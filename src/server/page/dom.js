// Elements from a name, attributes and children. A string is a text node: nothing is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// `on...` is a listener, true is an attribute without a value; null and false are left out.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const ICONS = {
  copy: "M9 9V4h11v11h-5M4 9h11v11H4z",
  check: "M4 12l5 5L20 6",
  retry: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  send: "M12 20V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  down: "M12 5v14M5 12l7 7 7-7",
  tool: "M14 6a4 4 0 0 0 5 5l-9 9a2 2 0 0 1-3-3l9-9a4 4 0 0 1-2-2z",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M14 5v4M6 15v4",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
};

export function icon(name) {
  const path = svg("path", { d: ICONS[name], fill: "none", stroke: "currentColor", "stroke-width": 2,
    "stroke-linecap": "round", "stroke-linejoin": "round" });
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "symbol" }, path);
}

// A button that copies a text, and says for a moment that it did. isNamed: it shows its label.
export function copyButton(label, text, isNamed = false) {
  const attributes = isNamed ? { class: "quiet with-icon" } : { class: "quiet icon small", "aria-label": label, title: label };
  const show = (name) => button.replaceChildren(icon(name), isNamed ? label : "");
  const button = h("button", { type: "button", ...attributes });
  button.addEventListener("click", async () => {
    const done = await copied(text());
    show(done ? "check" : "close");
    announce(done ? "Copied" : "The browser does not allow copying here");
    setTimeout(show, 1500, "copy");
  });
  show("copy");
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text); // absent on plain HTTP, except on this machine
    return true;
  } catch {
    const area = h("textarea", { class: "hidden", "aria-hidden": "true" }, text);
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// `code` in a description.
export function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

// For screen readers: what happened elsewhere on the page.
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

// An error of the server as it is.
export function errorBox({ status, message, details = {} }) {
  if (details.code === "insufficient_scope") {
    return h("p", { class: "note", role: "status" }, `This key may not see this. ${message}.`);
  }
  const known = Object.entries(details).filter(([, value]) => value !== null && value !== undefined);
  const shown = ([name, value]) => h("span", {}, `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return h("div", { class: "error", role: "alert" }, h("p", { class: "error-message" }, message),
    h("p", { class: "error-details" }, status ? h("span", {}, `HTTP ${status}`) : null, ...known.map(shown)));
}
