// Similarity: texts in the order in which the model finds them close to a query, from /v1/rerank.

import { errorBox, h } from "./dom.js";
import { call, checked, getJson } from "./server.js";
import { load, save } from "./store.js";

const QUERY = "How do I see what a deployment needs before it starts?";
const TEXTS = `engine plan shows whether a model fits, and why.
The cat sleeps in the sun.
engine validate checks a manifest without a GPU.
Memory is divided between weights and the KV cache.`;

export function similarityView() {
  const query = h("textarea", { id: "similarity-query", rows: 2 });
  const texts = h("textarea", { id: "similarity-texts", rows: 8 });
  const button = h("button", { type: "submit", class: "primary" }, "Compare");
  const state = h("p", { class: "note", role: "status" });
  const list = h("ol", { class: "similar" });
  const model = h("p", { class: "note" });
  const form = h("form", { class: "similarity-form", onsubmit: compare },
    h("label", { for: "similarity-query" }, "Query"), query,
    h("label", { for: "similarity-texts" }, "Texts, one in each line"), texts,
    h("div", { class: "row" }, button, state));
  const element = h("section", { class: "page similarity", "aria-labelledby": "similarity-title" },
    h("div", { class: "page-head" }, h("h1", { id: "similarity-title" }, "Similarity"), model), form, list);
  const kept = load("similarity", {});
  query.value = kept.query ?? QUERY;
  texts.value = kept.texts ?? TEXTS;
  let id = null;

  async function compare(event) {
    event.preventDefault();
    const documents = texts.value.split("\n").map((line) => line.trim()).filter(Boolean);
    save("similarity", { query: query.value, texts: texts.value });
    button.disabled = true;
    const began = performance.now();
    try {
      const body = JSON.stringify({ model: id ?? undefined, query: query.value, documents });
      const answer = await (await checked(await call("POST", "v1/rerank", { body }))).json();
      list.replaceChildren(...rowsOf(answer.results, documents));
      state.textContent = `${documents.length} texts, ${answer.usage.total_tokens} tokens, ${Math.round(performance.now() - began)} ms`;
    } catch (error) {
      state.textContent = "";
      list.replaceChildren(h("li", {}, errorBox(error)));
    } finally {
      button.disabled = false;
    }
  }

  async function shown() {
    try {
      id = (await getJson("v1/models")).data[0].id;
      model.textContent = id;
    } catch (error) {
      list.replaceChildren(h("li", {}, errorBox(error)));
    }
  }

  return { element, shown };
}

// A bar for each: from 0, or from the least score if it is negative, to 1, or to the greatest.
function rowsOf(results, documents) {
  const scores = results.map((result) => result.relevance_score);
  const least = Math.min(0, ...scores);
  const width = Math.max(...scores, 1) - least;
  return results.map(({ index, relevance_score: score }) => h("li", {},
    h("span", { class: "similar-score" }, score.toFixed(3)),
    h("meter", { min: 0, max: 1, value: (score - least) / width, "aria-label": `score ${score.toFixed(3)}` }),
    h("span", {}, documents[index])));
}
