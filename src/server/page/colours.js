// Colours of code: a library that is loaded with the first block finds keywords, strings and comments; here they become
// elements. Until then, and for a language that it does not have, code is plain text.

import { h } from "./dom.js";

// Characters of a block, and of a line, that are coloured: the library takes quadratic time for some texts, at most about
// half a second of these.
const MAX_CODE = 10_000;
const MAX_LINE = 1000;
let library = null;
let loading = null;

// code: the element that contains `text`. language: as the fence names it.
export function colour(code, text, language) {
  if (!language || text.length > MAX_CODE || text.split("\n").some((line) => line.length > MAX_LINE)) return;
  const show = () => {
    if (!library.getLanguage(language)) return;
    // The tree of the result: its `value` is HTML.
    const { _emitter } = library.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(...nodesOf(_emitter.rootNode));
  };
  if (library) show();
  else (loading ??= load()).then(show, () => {});
}

function nodesOf({ children }) {
  return children.map((child) =>
    typeof child === "string" ? child : h("span", { class: classOf(child.scope) }, ...nodesOf(child)));
}

// Scopes such as `title.function`; those of a language within another are `language:xml`.
function classOf(scope) {
  return scope && !scope.startsWith("language:") ? `code-${scope.split(".")[0]}` : null;
}

async function load() {
  library = (await import("./highlight.js")).default;
}
