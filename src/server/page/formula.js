// Formulas in TeX as MathML, which browsers render themselves. The library that reads TeX is loaded with the first formula;
// until then, and for what it cannot read, the source is shown.

import { h } from "./dom.js";

// No links and no HTML (trust), and bounded work: a model writes the source.
const LIMITS = { trust: false, throwOnError: true, maxExpand: 100, maxSize: [20, 20] };
let temml = null;
let loading = null;

// isDisplay: on a line of its own.
export function formula(source, isDisplay) {
  const element = h("span", { class: isDisplay ? "formula is-display" : "formula" }, h("code", {}, source));
  const show = () => {
    const math = h("span");
    try {
      temml.render(source, math, { ...LIMITS, displayMode: isDisplay });
      element.replaceChildren(...math.childNodes);
    } catch {
      // not TeX, or more than is allowed
    }
  };
  if (temml) show();
  else (loading ??= load()).then(show, () => {});
  return element;
}

async function load() {
  temml = (await import("./temml.js")).default;
}
