// The chat: a conversation with the model, its reasoning, and calls of tools that the user answers.

import { addChunk, before, duration, figures, newAnswer, openCalls, requestOf } from "./conversation.js";
import { announce, copyButton, errorBox, h, icon } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { getJson, streamed } from "./server.js";
import { Settings } from "./settings.js";
import { load, save } from "./store.js";

const NEAR_END = 80; // pixels from the end of the conversation within which it follows the answer
const STARTERS = ["Explain a prefix cache in three sentences.", "Write a haiku about a steam engine."];
const TINY_STARTERS = ["What does max_num_seqs do?", "What does enable_prefix_caching do?"];
const TOOL_STARTER = "What is the weather in Rome?";

export function chatView() {
  return new Chat();
}

class Chat {
  constructor() {
    this._messages = load("messages", []);
    this._settings = new Settings();
    this._settings.element.addEventListener("input", () => this._drawWelcome());
    this._running = null; // AbortController
    this._shown = new Map(); // message -> its MessageView
    this._build();
    this._draw();
    this._loadModels();
    document.addEventListener("key-changed", () => this._loadModels());
  }

  shown() {
    if (matchMedia("(min-width: 60rem)").matches) this._input.focus();
    this._follow(true);
  }

  // --- the elements

  _build() {
    this._log = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: "0" });
    this._log.addEventListener("scroll", () => this._atEnd());
    this._toEnd = h("button", { type: "button", class: "to-end", "aria-label": "To the end", onclick: () => this._follow(true) }, icon("down"));
    this._toEnd.hidden = true;
    this._input = h("textarea", { id: "prompt", rows: 1, "aria-label": "Message", placeholder: "Message", enterkeyhint: "send" });
    this._send = h("button", { type: "submit", class: "primary round", "aria-label": "Send" }, icon("send"));
    this._new = h("button", { type: "button", class: "quiet with-icon", onclick: () => this._clear() }, icon("plus"), "New chat");
    this._toggle = h("button", { type: "button", class: "quiet with-icon", "aria-controls": "settings-panel", onclick: () => this._showSettings() },
      icon("settings"), "Settings");
    this._model = h("span", { class: "model" });
    const composer = h("form", { class: "composer", "aria-label": "New message" }, h("div", { class: "box" }, this._input, this._send),
      h("div", { class: "composer-bar" }, this._new, this._toggle, this._model));
    composer.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this._running) this._stop();
      else this._submit();
    });
    this._input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this._running) this._submit();
      }
    });
    this._input.addEventListener("input", () => this._fit());
    const close = h("button", { type: "button", class: "quiet icon", "aria-label": "Close the settings", onclick: () => this._showSettings(false) }, icon("close"));
    this._panel = h("aside", { class: "panel", id: "settings-panel", "aria-label": "Settings" },
      h("div", { class: "panel-head" }, h("h2", {}, "Settings"), close), this._settings.element);
    this.element = h("section", { class: "chat", "aria-labelledby": "chat-title" }, h("h1", { class: "hidden", id: "chat-title" }, "Chat"),
      h("div", { class: "talk" }, this._log, this._toEnd, composer), this._panel);
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      if (this._running) this._stop();
      else if (!this._panel.hidden) this._showSettings(false);
    });
    this._showSettings(load("settings-open", false), false);
  }

  _showSettings(isOpen = this._panel.hidden, hasFocus = true) {
    this._panel.hidden = !isOpen;
    this._toggle.setAttribute("aria-expanded", String(isOpen));
    save("settings-open", isOpen);
    if (!hasFocus) return;
    if (isOpen) this._panel.querySelector("textarea").focus();
    else this._toggle.focus();
  }

  async _loadModels() {
    try {
      const { data } = await getJson("v1/models");
      this._settings.setModels(data);
      this._model.textContent = this._settings.model;
      this._drawWelcome();
    } catch (error) {
      this._model.textContent = "";
      if (error.status !== 401) this._model.replaceChildren(errorBox(error));
    }
  }

  _draw() {
    this._shown.clear();
    this._log.replaceChildren(...(this._messages.length ? [] : [this._welcome()]));
    this._messages.forEach((message) => this._add(message));
    this._updateState();
    this._follow(true);
  }

  _welcome() {
    const model = this._settings.model;
    const starters = model.startsWith("builtin:tiny") ? TINY_STARTERS : STARTERS;
    const start = (text, prepare, note) =>
      h("button", { type: "button", class: "starter", onclick: () => { prepare?.(); this._ask(text); } }, text,
        note ? h("span", { class: "note" }, ` ${note}`) : null);
    const hasTool = this._settings.allowsSampleTool;
    return h("div", { class: "welcome" },
      h("h2", {}, model ? ["Chat with ", h("span", { class: "name" }, model)] : "Chat"),
      h("p", {}, "The conversation is kept in this tab until you close it."),
      h("div", { class: "starters" }, ...starters.map((text) => start(text)),
        hasTool ? start(TOOL_STARTER, () => this._settings.addSampleTool(), "with a sample tool") : null));
  }

  // Again, when what it offers may have changed.
  _drawWelcome() {
    this._log.querySelector(".welcome")?.replaceWith(this._welcome());
  }

  _add(message) {
    if (message.role === "tool") return; // shown with its call
    this._log.querySelector(".welcome")?.remove();
    const view = message.role === "user" ? userView(message, this) : new AnswerView(message, this);
    this._shown.set(message, view);
    this._log.append(view.element);
  }

  // --- what the user does

  _submit() {
    const text = this._input.value.trim();
    if (!text || openCalls(this._messages).length) return;
    this._input.value = "";
    this._fit();
    this._ask(text);
  }

  _ask(text) {
    const message = { role: "user", content: text };
    this._messages.push(message);
    this._add(message);
    this._keep();
    this._generate();
  }

  // Another answer in place of this one.
  retry(answer) {
    if (this._running) return;
    this._messages = before(this._messages, answer);
    this._draw();
    this._generate();
  }

  // The message again in the input, without what followed it.
  edit(message) {
    if (this._running) return;
    this._messages = before(this._messages, message);
    this._keep();
    this._draw();
    this._input.value = message.content;
    this._fit();
    this._input.focus();
  }

  resultOf(call) {
    return this._messages.find((message) => message.role === "tool" && message.id === call.id)?.content;
  }

  isOpen(call) {
    return !this._running && openCalls(this._messages).includes(call);
  }

  answerCall(call, content) {
    this._messages.push({ role: "tool", id: call.id, content });
    this._keep();
    this._drawAll();
    const next = this._log.querySelector(".call textarea");
    if (next) next.focus();
    else this._generate();
  }

  _clear() {
    this._stop();
    this._messages = [];
    this._keep();
    this._draw();
    this._input.focus();
  }

  _stop() {
    this._running?.abort();
  }

  // --- an answer

  async _generate() {
    const answer = newAnswer(performance.now());
    this._messages.push(answer);
    const running = (this._running = new AbortController());
    this._add(answer);
    this._drawAll();
    this._follow(true);
    try {
      const body = requestOf(this._messages.slice(0, -1), this._settings.value());
      for await (const chunk of streamed("v1/chat/completions", body, running.signal)) {
        addChunk(answer, chunk, performance.now());
        this._later(answer);
      }
    } catch (error) {
      if (error.name === "AbortError") answer.isStopped = true;
      else answer.error = { status: error.status, message: error.message, details: error.details };
    }
    this._running = null;
    this._finish(answer);
  }

  // Draws at most once per frame, however fast the pieces come.
  _later(answer) {
    if (this._frame) return;
    this._frame = requestAnimationFrame(() => {
      this._frame = null;
      const isFollowing = this._isAtEnd();
      this._shown.get(answer)?.update(true);
      if (isFollowing) this._follow(true);
    });
  }

  _finish(answer) {
    cancelAnimationFrame(this._frame);
    this._frame = null;
    const isFollowing = this._isAtEnd();
    this._drawAll();
    this._keep();
    if (isFollowing) this._follow(true);
    const calls = openCalls(this._messages).length;
    if (answer.error) announce(`Error: ${answer.error.message}`);
    else announce(calls ? "The model calls a tool." : `Answer complete. ${answer.content.slice(0, 500)}`);
    this._log.querySelector(".call textarea")?.focus();
  }

  _drawAll() {
    for (const [message, view] of this._shown) {
      if (message.role === "assistant") view.update(Boolean(this._running) && message === this._messages.at(-1));
    }
    this._updateState();
  }

  _keep() {
    save("messages", this._messages);
  }

  _updateState() {
    const isRunning = Boolean(this._running);
    this.element.classList.toggle("is-running", isRunning);
    this._send.replaceChildren(icon(isRunning ? "stop" : "send"));
    this._send.setAttribute("aria-label", isRunning ? "Stop" : "Send");
    this._input.placeholder = openCalls(this._messages).length && !isRunning ? "Answer the call above to go on" : "Message";
  }

  // --- scrolling

  _fit() {
    this._input.style.height = "auto";
    this._input.style.height = `${this._input.scrollHeight}px`;
  }

  _isAtEnd() {
    return this._log.scrollHeight - this._log.scrollTop - this._log.clientHeight < NEAR_END;
  }

  _atEnd() {
    this._toEnd.hidden = this._isAtEnd();
  }

  _follow(isForced) {
    if (isForced) this._log.scrollTop = this._log.scrollHeight;
    this._atEnd();
  }
}

function userView(message, chat) {
  const edit = h("button", { type: "button", class: "quiet icon small", "aria-label": "Edit this message", title: "Edit", onclick: () => chat.edit(message) }, icon("edit"));
  const element = h("article", { class: "message user", "aria-label": "You" },
    h("div", { class: "bubble" }, message.content),
    h("div", { class: "actions" }, edit, copyButton("Copy this message", () => message.content)));
  return { element };
}

class AnswerView {
  constructor(answer, chat) {
    this._answer = answer;
    this._chat = chat;
    this._text = new MarkdownView();
    this._summary = h("summary", {}, "Reasoning");
    this._thought = h("div", { class: "thought" });
    this._reasoning = h("details", { class: "reasoning" }, this._summary, this._thought);
    this._waiting = h("p", { class: "waiting", "aria-label": "Waiting for the first token" }, h("i"), h("i"), h("i"));
    this._calls = h("div", { class: "calls" });
    this._end = h("div", { class: "end" });
    this.element = h("article", { class: "message answer", "aria-label": "Answer" },
      this._reasoning, this._waiting, this._text.element, this._calls, this._end);
    this.update(false);
  }

  update(isRunning) {
    const answer = this._answer;
    this.element.setAttribute("aria-busy", String(isRunning));
    this._waiting.hidden = !isRunning || answer.firstAt !== null;
    this._reasoning.hidden = !answer.reasoning;
    if (this._thought.textContent !== answer.reasoning) this._thought.textContent = answer.reasoning;
    this._summary.textContent = this._reasoningTitle(isRunning);
    this._text.show(answer.content);
    if (isRunning) this._showGrowing();
    else this._showWhole();
  }

  _reasoningTitle(isRunning) {
    const { firstAt, lastAt, reasoningEndAt } = this._answer;
    if (isRunning && reasoningEndAt === null) return "Thinking …";
    const time = (reasoningEndAt ?? lastAt) - firstAt;
    return time < 100 ? "Reasoning" : `Thought for ${duration(time)}`;
  }

  _showGrowing() {
    this._calls.replaceChildren(...this._answer.calls.map((call) => callHead(call)));
    this._end.replaceChildren(figureLine(figures(this._answer)));
  }

  _showWhole() {
    const answer = this._answer;
    this._calls.replaceChildren(...answer.calls.map((call) => callView(call, this._chat)));
    const retry = h("button", { type: "button", class: "quiet icon small", "aria-label": "Another answer", title: "Retry", onclick: () => this._chat.retry(answer) }, icon("retry"));
    const actions = h("div", { class: "actions" }, retry, answer.content ? copyButton("Copy this answer", () => answer.content) : null, figureLine(figures(answer)));
    const isEmpty = answer.finish && !answer.content && !answer.calls.length && !answer.error;
    this._end.replaceChildren(...[answer.error ? errorBox(answer.error) : null,
      isEmpty ? h("p", { class: "note" }, "The answer is empty.") : null, actions].filter(Boolean));
  }
}

function figureLine(shown) {
  return h("p", { class: "figures" }, ...shown.map(([text, title]) => h("span", { title }, text)));
}

function callHead(call) {
  return h("div", { class: "call" }, h("p", { class: "call-name" }, icon("tool"), h("code", {}, call.name)),
    h("pre", { tabindex: "0" }, h("code", {}, indented(call.arguments))));
}

function callView(call, chat) {
  const view = callHead(call);
  const result = chat.resultOf(call);
  if (result !== undefined) {
    view.append(h("p", { class: "call-label" }, "Result"), h("pre", { tabindex: "0" }, h("code", {}, result)));
  } else if (chat.isOpen(call)) {
    const input = h("textarea", { rows: 3, class: "code-input", spellcheck: "false" }, sampleResult(call));
    view.append(h("form", { onsubmit: (event) => { event.preventDefault(); chat.answerCall(call, input.value); } },
      h("label", {}, h("span", {}, `Result of ${call.name}`), input),
      h("div", { class: "row end" }, h("button", { type: "submit", class: "primary" }, "Send the result"))));
  }
  return view;
}

function sampleResult(call) {
  return call.name === "get_weather" ? '{"temperature": 18}' : "";
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not complete, or not JSON: as the model wrote it
  }
}
