// openai, the JavaScript library of OpenAI.

import OpenAI from 'openai'

const client = (task) =>
  new OpenAI({ baseURL: task.url, apiKey: task.key, maxRetries: task.retries, timeout: task.timeout_s * 1000 })

const create = (task, more = {}) =>
  client(task).chat.completions.create({
    model: task.model,
    messages: [{ role: 'user', content: task.question }],
    ...task.options,
    ...task.extra,
    ...more,
  })

const usage = (found) => [found.prompt_tokens, found.completion_tokens]

export async function models(task) {
  const found = []
  for await (const model of client(task).models.list()) found.push(model.id)
  return found
}

export async function completion(task) {
  const done = await client(task).completions.create({ model: task.model, prompt: task.prompt, ...task.options })
  return { text: done.choices[0].text, usage: usage(done.usage) }
}

export async function chat(task) {
  const done = await create(task)
  const { message, finish_reason } = done.choices[0]
  return { text: message.content, finish_reason, usage: usage(done.usage) }
}

export async function raw(task) {
  const { data, response } = await create(task).withResponse()
  const { message, finish_reason } = data.choices[0]
  const headers = [...response.headers.keys()]
  return { text: message.content, finish_reason, usage: usage(data.usage), headers }
}

export async function history(task) {
  const question = { role: 'user', content: task.question }
  const messages = [{ role: 'system', content: task.system }, question]
  const { message } = (await create(task, { messages })).choices[0]
  const done = await create(task, { messages: [...messages, message, question] })
  return { text: done.choices[0].message.content }
}

export async function tool_result(task) {
  const done = await create(task, { messages: task.exchange, tools: [task.tool] })
  return { text: done.choices[0].message.content }
}

export async function stream(task) {
  const pieces = []
  for await (const chunk of await create(task, { stream: true })) pieces.push(chunk.choices[0]?.delta.content)
  return pieces.filter(Boolean)
}

export async function stream_usage(task) {
  let last
  for await (const chunk of await create(task, { stream: true, stream_options: { include_usage: true } })) last = chunk
  return usage(last.usage)
}

export async function cancel(task) {
  const stream = await create(task, { stream: true })
  for await (const _ of stream) break
  stream.controller.abort()
}

export async function logprobs(task) {
  const done = await create(task, { logprobs: true, top_logprobs: 2 })
  return done.choices[0].logprobs.content.map((each) => [each.token, each.logprob, each.top_logprobs.length])
}

export async function several(task) {
  return (await create(task, { n: 2 })).choices.map((choice) => choice.message.content)
}

const calls = (message) =>
  (message.tool_calls ?? []).map((call) => ({
    id: call.id,
    name: call.function.name,
    arguments: call.function.arguments,
  }))

export async function tools(task, more = {}) {
  const { message } = (await create(task, { tools: [task.tool], ...more })).choices[0]
  return { text: message.content, calls: calls(message) }
}

export async function stream_tools(task, more = {}) {
  const request = { model: task.model, messages: [{ role: 'user', content: task.question }], tools: [task.tool] }
  const runner = client(task).chat.completions.stream({ ...request, ...task.options, ...more })
  const { message, finish_reason } = (await runner.finalChatCompletion()).choices[0]
  return { text: message.content, calls: calls(message), finish_reason }
}

export async function tool_loop(task) {
  const messages = [{ role: 'user', content: task.question }]
  const first = (await create(task, { tools: [task.tool] })).choices[0].message
  const results = (first.tool_calls ?? []).map((call) => ({
    role: 'tool',
    tool_call_id: call.id,
    content: task.tool_answer,
  }))
  const done = await create(task, { tools: [task.tool], messages: [...messages, first, ...results] })
  return { calls: calls(first), text: done.choices[0].message.content }
}

export const forced_tool = (task) => tools(task, { tool_choice: 'required' })

export async function structured(task) {
  const response_format = { type: 'json_schema', json_schema: { name: 'person', schema: task.schema, strict: true } }
  const messages = [{ role: 'user', content: task.question }]
  const request = { model: task.model, messages, response_format, ...task.options }
  return (await client(task).chat.completions.parse(request)).choices[0].message.parsed
}

export async function responses(task) {
  return (await client(task).responses.create({ model: task.model, input: task.question })).output_text
}

export async function responses_stream(task) {
  const events = []
  const request = { model: task.model, input: task.question, temperature: 0, stream: true }
  for await (const event of await client(task).responses.create(request)) events.push(event)
  return events
}

export async function responses_stream_tools(task) {
  const tools = [{ type: 'function', ...task.tool.function }]
  const events = []
  const request = { model: task.model, input: task.question, temperature: 0, stream: true, tools }
  for await (const event of await client(task).responses.create(request)) events.push(event)
  return events
}

export async function embeddings(task) {
  return (await client(task).embeddings.create({ model: task.model, input: task.question })).data[0].embedding.length
}
