// Markdown of a model's answer as DOM nodes. Small on purpose: code, lists, headings, quotes, tables, bold, italic, links,
// formulas.
//
// Every piece of text becomes a text node, and every element is made by name, so that an answer cannot contain HTML.
// Images are not loaded: their address could carry parts of the conversation to another host. Reading takes linear time.

import { colour } from "./colours.js";
import { copyButton, h } from "./dom.js";
import { formula } from "./formula.js";

const MAX_INLINE = 20_000; // characters of a paragraph whose marks are read
const MAX_MARK_LINE = 1000; // characters of a line that can be a fence, a rule or the rule of a table
const MAX_FORMULA = 2000; // characters
const MAX_FORMULA_LINES = 100;
const MAX_DEPTH = 6; // of quotes, lists and bold or italic text within each other
const LINK = /^(https?:\/\/|mailto:)[^\s<>"]+$/i;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +/;
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]*)[^`]*$/;
const CLOSING = { "$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]" }; // of a formula, by what opens it
const RULE = /^ {0,3}(?:\*[* ]*\*[* ]*\*|-[- ]*-[- ]*-|_[_ ]*_[_ ]*_) *$/;
const TABLE_RULE = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

// Shows an answer as it grows: blocks whose text did not change keep their elements, with what is selected in them.
export class MarkdownView {
  constructor() {
    this.element = h("div", { class: "markdown" });
    this._shown = [];
  }

  show(text) {
    const blocks = blocksOf(text.split("\n"));
    const sources = blocks.map((block) => block.lines.join("\n"));
    let same = 0;
    while (same < sources.length && same < this._shown.length && sources[same] === this._shown[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...blocks.slice(same).map((block) => rendered(block, 0)));
    this._shown = sources;
  }
}

// kind: code, heading, rule, quote, list, table, text. lines: the source, all of it.
export function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  const take = (kind, end, more = {}) => {
    blocks.push({ kind, lines: lines.slice(at, end), ...more });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = isMark(FENCE, line) ? FENCE.exec(line) : null;
    if (line.trim() === "") at += 1;
    else if (fence) take("code", endOfCode(lines, at, fence[1]), { fence: fence[1], language: fence[2] });
    else if (endOfFormula(lines, at)) take("text", endOfFormula(lines, at));
    else if (/^ {0,3}#{1,6} /.test(line)) take("heading", at + 1);
    else if (isMark(RULE, line)) take("rule", at + 1);
    else if (/^ {0,3}>/.test(line)) take("quote", endWhile(lines, at, (each) => /^ {0,3}>/.test(each)));
    else if (ITEM.test(line)) take("list", endOfList(lines, at));
    else if (isTable(lines, at)) take("table", endWhile(lines, at, (each) => each.includes("|")));
    else take("text", endOfText(lines, at));
  }
  return blocks;
}

// These patterns take quadratic time, which a long line would show.
function isMark(pattern, line) {
  return line.length <= MAX_MARK_LINE && pattern.test(line);
}

function endWhile(lines, start, holds) {
  let end = start + 1;
  while (end < lines.length && holds(lines[end])) end += 1;
  return end;
}

function endOfCode(lines, start, fence) {
  const mark = fence[0];
  for (let end = start + 1; end < lines.length; end += 1) {
    const line = lines[end].trim();
    if (line.length >= fence.length && line === mark.repeat(line.length)) return end + 1;
  }
  return lines.length; // not closed yet
}

// Of a formula whose lines are no list or table, whatever they begin with; null if there is none, or no end yet.
function endOfFormula(lines, start) {
  const opening = /^ {0,3}(\$\$|\\\[)/.exec(lines[start].slice(0, 8))?.[1];
  if (!opening) return null;
  for (let at = start; at < lines.length && at < start + MAX_FORMULA_LINES; at += 1) {
    const text = at === start ? lines[at].trim().slice(opening.length) : lines[at].trim();
    if (text.endsWith(CLOSING[opening])) return at + 1;
  }
  return null;
}

function endOfList(lines, start) {
  let end = endWhile(lines, start, (line) => ITEM.test(line) || /^ {2,}\S/.test(line) || line.trim() === "");
  while (lines[end - 1].trim() === "") end -= 1;
  return end;
}

function isTable(lines, at) {
  return lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && isMark(TABLE_RULE, lines[at + 1]);
}

function endOfText(lines, start) {
  let end = start + 1;
  while (end < lines.length) {
    const line = lines[end];
    if (line.trim() === "" || isMark(FENCE, line) || ITEM.test(line) || /^ {0,3}(#{1,6} |>)/.test(line)) break;
    if (isMark(RULE, line) || isTable(lines, end)) break;
    end += 1;
  }
  return end;
}

function rendered(block, depth) {
  if (depth > MAX_DEPTH) return h("p", {}, block.lines.join("\n"));
  return RENDER[block.kind](block, depth);
}

const RENDER = {
  code({ lines, fence, language }) {
    const last = lines[lines.length - 1].trim();
    const isClosed = lines.length > 1 && last.length >= fence.length && last === fence[0].repeat(last.length);
    const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
    const bar = h("div", { class: "code-bar" }, h("span", {}, language || "text"), copyButton("Copy code", () => text));
    const code = h("code", {}, text);
    if (isClosed) colour(code, text, language.toLowerCase());
    return h("div", { class: "code" }, bar, h("pre", { tabindex: "0" }, code));
  },
  heading({ lines }) {
    const [, marks, text] = /^ *(#+) +(.*)$/.exec(lines[0]);
    // below the headings of the page
    return h(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text));
  },
  rule: () => h("hr"),
  quote({ lines }, depth) {
    const inner = lines.map((line) => line.replace(/^ {0,3}> ?/, ""));
    return h("blockquote", {}, ...blocksOf(inner).map((block) => rendered(block, depth + 1)));
  },
  list({ lines }, depth) {
    const [, indent, mark] = ITEM.exec(lines[0]);
    const isOrdered = /\d/.test(mark);
    const items = [];
    for (const line of lines) {
      const found = ITEM.exec(line);
      if (found && found[1].length <= indent.length + 1) items.push([line.slice(found[0].length)]);
      else items.at(-1).push(line);
    }
    const start = isOrdered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : null;
    return h(isOrdered ? "ol" : "ul", { start }, ...items.map((item) => h("li", {}, ...itemContent(item, depth))));
  },
  table({ lines }) {
    const [head, , ...rows] = lines.map(cells);
    const row = (kind, texts) => h("tr", {}, ...head.map((_, index) => h(kind, {}, ...inline(texts[index] ?? ""))));
    const table = h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, ...rows.map((each) => row("td", each))));
    return h("div", { class: "wide", tabindex: "0" }, table);
  },
  text: ({ lines }) => h("p", {}, ...inline(lines.map((line) => line.trim()).join("\n"))),
};

function itemContent([first, ...rest], depth) {
  const depths = rest.filter((line) => line.trim()).map((line) => line.search(/\S/));
  const indent = Math.min(...depths, 8);
  const blocks = blocksOf([first, ...rest.map((line) => line.slice(indent))]);
  const nodes = blocks.map((block) => rendered(block, depth + 1));
  // an item of one paragraph has no paragraph of its own: the list stays tight
  return nodes.length && nodes[0].localName === "p" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
}

// Text and elements of one paragraph.
export function inline(text, depth = 0) {
  if (text.length > MAX_INLINE || depth > MAX_DEPTH) return [text];
  const nodes = [];
  const missing = new Set(); // marks that do not occur again: not searched for twice
  let plain = "";
  let at = 0;
  const push = (node, end) => {
    if (plain) nodes.push(plain);
    nodes.push(node);
    plain = "";
    at = end;
  };
  const endOf = (mark, from) => {
    if (missing.has(mark)) return -1;
    const found = text.indexOf(mark, from);
    if (found < 0) missing.add(mark);
    return found;
  };
  while (at < text.length) {
    const found = marked(text, at, endOf, depth);
    if (found) push(found.node, found.end);
    else {
      const length = /^[`*_]+|^[^`*_[!\\$\n]+/.exec(text.slice(at, at + 512))?.[0].length ?? 1;
      plain += text.slice(at, at + length);
      at += length;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function marked(text, at, endOf, depth) {
  const first = text[at];
  if (first === "\n") return { node: h("br"), end: at + 1 };
  const tex = first === "$" || first === "\\" ? texAt(text, at, endOf) : null;
  if (tex) return tex;
  if (first === "\\" && /[\\`*_[\]{}()#+.!|>~$-]/.test(text[at + 1] ?? "")) {
    return { node: text[at + 1], end: at + 2 };
  }
  if (first === "`") {
    const mark = /^`+/.exec(text.slice(at, at + 64))[0];
    const end = endOf(mark, at + mark.length);
    if (end < 0) return null;
    return { node: h("code", {}, text.slice(at + mark.length, end)), end: end + mark.length };
  }
  if (first === "*" || first === "_") return emphasis(text, at, endOf, depth);
  if (first === "[" || (first === "!" && text[at + 1] === "[")) return link(text, at, endOf, depth);
  return null;
}

function texAt(text, at, endOf) {
  const opening = text.startsWith("$$", at) || text[at] === "\\" ? text.slice(at, at + 2) : "$";
  const closing = CLOSING[opening];
  if (!closing) return null;
  const start = at + opening.length;
  const end = endOf(closing, start);
  const source = end < 0 || end - start > MAX_FORMULA ? "" : text.slice(start, end);
  if (!source.trim()) return null;
  // "$5 and $6" is no formula
  if (opening === "$" && (/^\s|[\s\\]$/.test(source) || /\d/.test(text[end + 1] ?? ""))) return null;
  const isDisplay = opening === "$$" || opening === "\\[";
  return { node: formula(source, isDisplay), end: end + closing.length };
}

function emphasis(text, at, endOf, depth) {
  const mark = text[at + 1] === text[at] ? text[at].repeat(2) : text[at];
  const start = at + mark.length;
  const isWord = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);
  if (text[start] === undefined || /\s/.test(text[start]) || (mark[0] === "_" && isWord(text[at - 1]))) return null;
  const end = endOf(mark, start + 1);
  if (end < 0 || /\s/.test(text[end - 1]) || (mark[0] === "_" && isWord(text[end + mark.length]))) return null;
  const inner = inline(text.slice(start, end), depth + 1);
  return { node: h(mark.length === 2 ? "strong" : "em", {}, ...inner), end: end + mark.length };
}

function link(text, at, endOf, depth) {
  const isImage = text[at] === "!";
  const start = at + (isImage ? 2 : 1);
  const middle = endOf("](", start);
  if (middle < 0 || middle - start > 1000) return null;
  const end = text.indexOf(")", middle + 2);
  if (end < 0 || end - middle > 2000) return null;
  const [name, address] = [text.slice(start, middle), text.slice(middle + 2, end).trim()];
  if (name.includes("\n") || !LINK.test(address)) return null;
  const shown = isImage ? [`image: ${name || address}`] : inline(name, depth + 1);
  return { node: h("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank", title: address }, ...shown), end: end + 1 };
}
