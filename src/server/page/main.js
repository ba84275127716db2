// The page: which view is shown, the colours, and the key.

import { chatView } from "./chat.js";
import { configView } from "./config.js";
import { docsView } from "./docs.js";
import { h } from "./dom.js";
import { liveView } from "./live.js";
import { key } from "./server.js";
import { similarityView } from "./similarity.js";

const VIEWS = {
  chat: { title: "Chat", make: chatView },
  similarity: { title: "Similarity", make: similarityView },
  live: { title: "Live", make: liveView },
  config: { title: "Configuration", make: configView },
  docs: { title: "API", make: docsView },
};
const root = document.documentElement;
const offered = root.dataset.views.split(" ");
const home = location.pathname.endsWith("/docs") ? "docs" : offered[0];
const main = document.getElementById("main");
const made = new Map(); // view -> {element, shown?, hidden?}
let current = null;

function addressOf(view) {
  return view === "docs" ? "docs" : `./#${view}`;
}

function wanted() {
  const name = location.hash.slice(1).split("/")[0];
  if (home === "docs") return "docs";
  return offered.includes(name) && name !== "docs" ? name : home;
}

function show(name) {
  if (current === name) return;
  if (current) {
    made.get(current).element.hidden = true;
    made.get(current).hidden?.();
  }
  current = name;
  if (!made.has(name)) {
    made.set(name, VIEWS[name].make());
    main.append(made.get(name).element);
  }
  made.get(name).element.hidden = false;
  made.get(name).shown?.();
  document.title = `${VIEWS[name].title} · Stoker`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function addViews() {
  for (const view of offered) {
    document.getElementById("views").append(h("a", { href: addressOf(view), "data-view": view }, VIEWS[view].title));
  }
  if (offered[0] === "docs") document.querySelector(".brand").setAttribute("href", "docs");
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash of the address names the view
    main.focus();
  });
}

// --- colours: the system's, until the switch is used to have the others

function addThemeSwitch() {
  const button = document.getElementById("theme-button");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const update = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    const isSystem = (theme === "dark") === system.matches;
    if (isSystem) delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      if (isSystem) localStorage.removeItem("stoker.theme");
      else localStorage.setItem("stoker.theme", theme);
    } catch {
      // until the page is loaded again
    }
    update();
  });
  system.addEventListener("change", update);
  update();
}

// --- the key

function addKeyDialog() {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key-input");
  const button = document.getElementById("key-button");
  const problem = document.getElementById("key-error");
  const update = () => {
    button.textContent = { accepted: "API key ✓", refused: "API key refused" }[key.state] ?? "API key";
    button.dataset.state = key.state;
  };
  const open = () => {
    problem.textContent = key.state === "refused" ? "The server does not accept the key." : "";
    document.getElementById("key-forget").hidden = !key.get();
    input.value = "";
    if (!dialog.open) dialog.showModal();
    input.focus();
  };
  button.addEventListener("click", open);
  document.addEventListener("key-needed", open);
  document.getElementById("key-cancel").addEventListener("click", () => dialog.close());
  document.getElementById("key-forget").addEventListener("click", () => {
    key.set(null);
    dialog.close();
  });
  document.getElementById("key-form").addEventListener("submit", () => key.set(input.value.trim()));
  document.addEventListener("key-changed", update);
  document.addEventListener("key-answered", update);
  update();
}

addViews();
addThemeSwitch();
addKeyDialog();
show(wanted());
addEventListener("hashchange", () => show(wanted()));
