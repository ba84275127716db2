// Calls of the server: with the key, and with its errors as they are.

import { load, save } from "./store.js";

export class ServerError extends Error {
  // status: 0 without an answer. details: the other fields of the error object.
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.details = details;
  }
}

// state: "none", "unknown" until an answer, "accepted", or "refused". A route that needs no key answers with a wrong one
// too: only another key ends "refused".
export const key = {
  state: load("key", null) ? "unknown" : "none",
  get: () => load("key", null),
  set(value) {
    save("key", value);
    key.state = value ? "unknown" : "none";
    document.dispatchEvent(new Event("key-changed"));
  },
  // sent: the key of a request that has an answer with this status.
  answered(sent, status) {
    if (!sent || sent !== key.get() || key.state === "refused" || status >= 500) return;
    key.state = status === 401 ? "refused" : "accepted";
    document.dispatchEvent(new Event("key-answered"));
  },
};

export async function call(method, path, { body, signal } = {}) {
  const headers = {};
  const sent = key.get();
  if (sent) headers.authorization = `Bearer ${sent}`;
  if (typeof body === "string") headers["content-type"] = "application/json";
  try {
    const response = await fetch(path, { method, headers, body, signal, cache: "no-store", credentials: "same-origin" });
    key.answered(sent, response.status);
    return response;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer: it has stopped, or the connection is interrupted.");
  }
}

export async function checked(response) {
  if (response.ok) return response;
  const error = await errorOf(response);
  if (response.status === 401) document.dispatchEvent(new Event("key-needed"));
  throw error;
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const { message, ...details } = JSON.parse(text).error;
    if (typeof message === "string") return new ServerError(response.status, message, details);
  } catch {
    // not from Stoker: a proxy in between
  }
  return new ServerError(response.status, text.slice(0, 500) || response.statusText || "an error without a message");
}

export async function getJson(path) {
  return (await checked(await call("GET", path))).json();
}

export async function getText(path) {
  return (await checked(await call("GET", path))).text();
}

// The objects of a stream of server-sent events. Raises ServerError for an error event, and for a stream that breaks off.
export async function* streamed(path, body, signal) {
  const response = await checked(await call("POST", path, { body: JSON.stringify(body), signal }));
  for await (const data of eventData(pieces(response.body))) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) {
      const { message, ...details } = event.error;
      throw new ServerError(response.status, message, details);
    }
    yield event;
  }
  throw new ServerError(response.status, "The connection closed before the answer was complete.");
}

async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The connection was interrupted before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The data of each event. texts: the stream, split anywhere.
export async function* eventData(texts) {
  let rest = "";
  for await (const text of texts) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}
