// A conversation as data: what a request contains, and how an answer grows from the pieces of a stream.
//
// A message of the user: {role, content}. An answer: {role, content, reasoning, calls, ...}, with what is known about it.
// A result of a call: {role: "tool", id, content}. Nothing here touches the page.

const MIN_TIMED_MS = 50; // a shorter answer has no speed: its pieces came together

export function newAnswer(startedAt) {
  return {
    role: "assistant", content: "", reasoning: "", calls: [], finish: null, error: null, usage: null,
    startedAt, firstAt: null, lastAt: null, reasoningEndAt: null, isStopped: false,
  };
}

// Adds one chunk of a stream. now: milliseconds.
export function addChunk(answer, chunk, now) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices?.find(({ index }) => index === 0); // of several answers the first is shown
  if (!choice) return;
  const { content, reasoning, reasoning_content, tool_calls } = choice.delta ?? {};
  const thought = reasoning ?? reasoning_content; // a server may send both, with the same text
  if (thought) answer.reasoning += thought;
  if (content) answer.content += content;
  for (const piece of tool_calls ?? []) addCall(answer.calls, piece);
  if (thought || content || tool_calls?.length) {
    answer.firstAt ??= now;
    answer.lastAt = now;
  }
  if (answer.reasoning && (content || tool_calls?.length)) answer.reasoningEndAt ??= now;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function addCall(calls, { index, id, function: called = {} }) {
  const call = (calls[index] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  if (called.name) call.name = called.name;
  call.arguments += called.arguments ?? "";
}

// The calls of the last answer that have no result yet.
export function openCalls(messages) {
  const at = messages.findLastIndex((message) => message.role !== "tool");
  if (at < 0 || messages[at].role !== "assistant") return [];
  const answered = new Set(messages.slice(at + 1).map((message) => message.id));
  return messages[at].calls.filter((call) => !answered.has(call.id));
}

// Without the answer at this place and all after it; a failed or repeated answer is generated again from there.
export function before(messages, message) {
  return messages.slice(0, messages.indexOf(message));
}

export function requestOf(messages, settings) {
  const isEmpty = ({ role, content, calls }) => role === "assistant" && !content && !calls.length; // it failed
  const sent = messages.filter((message) => !isEmpty(message)).map(wireMessage);
  if (settings.system.trim()) sent.unshift({ role: "system", content: settings.system });
  const body = { model: settings.model, messages: sent, stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const [name, value] of Object.entries(settings.fields)) {
    if (value !== "" && value !== null) body[name] = value;
  }
  if (settings.tools.length) body.tools = settings.tools;
  return { ...body, ...settings.more, stream: true };
}

function wireMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.id, content: message.content };
  if (message.role === "user") return { role: "user", content: message.content };
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning = message.reasoning;
  if (message.calls.length) {
    sent.tool_calls = message.calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
  }
  return sent;
}

// What is shown below an answer: [text, explanation] each.
export function figures(answer) {
  const shown = [];
  const { usage, firstAt, lastAt, startedAt } = answer;
  if (usage) {
    const generated = usage.completion_tokens;
    shown.push([`${generated} token${generated === 1 ? "" : "s"}`, "generated, reasoning included"]);
    if (generated > 1 && lastAt - firstAt > MIN_TIMED_MS) {
      const rate = ((generated - 1) * 1000) / (lastAt - firstAt);
      shown.push([`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`, "after the first token"]);
    }
  }
  if (firstAt !== null) shown.push([`first after ${duration(firstAt - startedAt)}`, "time to the first token"]);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    const part = cached ? `, ${cached} of them from the cache` : "";
    shown.push([`prompt ${usage.prompt_tokens}${part}`, "tokens of the prompt"]);
  }
  const ENDS = { length: "cut at the token limit", content_filter: "cut by a filter", abort: "ended by the server" };
  if (ENDS[answer.finish]) shown.push([ENDS[answer.finish], `finish_reason: ${answer.finish}`]);
  if (answer.isStopped) shown.push(["stopped", "you stopped this answer"]);
  return shown;
}

export function duration(milliseconds) {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}
