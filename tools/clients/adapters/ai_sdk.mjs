// @ai-sdk/openai-compatible: the provider of Vercel's AI SDK for servers with OpenAI's API.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embed, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai'

const provider = (task) =>
  createOpenAICompatible({
    name: 'stoker',
    baseURL: task.url,
    apiKey: task.key,
    includeUsage: true,
    supportsStructuredOutputs: true,
  })

const question = (task) => ({ role: 'user', content: task.question })

function request(task, more = {}) {
  const { max_tokens, stop, ...options } = task.options
  return {
    model: provider(task).chatModel(task.model),
    messages: [question(task)],
    maxOutputTokens: max_tokens,
    stopSequences: stop,
    ...options,
    maxRetries: task.retries,
    abortSignal: AbortSignal.timeout(task.timeout_s * 1000),
    providerOptions: { stoker: task.extra },
    ...more,
  }
}

const usage = (found) => [found.inputTokens, found.outputTokens]

const weather = (task) => ({
  [task.tool.function.name]: tool({
    description: task.tool.function.description,
    inputSchema: jsonSchema(task.tool.function.parameters),
  }),
})

export async function completion(task) {
  const model = provider(task).completionModel(task.model)
  const messages = [{ role: 'user', content: task.prompt }]
  const done = await generateText(request(task, { model, messages }))
  return { text: done.text, usage: usage(done.usage) }
}

export async function chat(task) {
  const done = await generateText(request(task))
  return { text: done.text, finish_reason: done.finishReason, usage: usage(done.usage) }
}

export async function history(task) {
  const messages = [question(task)]
  const first = await generateText(request(task, { system: task.system, messages }))
  messages.push(...first.response.messages, question(task))
  return { text: (await generateText(request(task, { system: task.system, messages }))).text }
}

export async function tool_result(task) {
  const [asked, { tool_calls }, answered] = task.exchange
  const call = { toolCallId: tool_calls[0].id, toolName: tool_calls[0].function.name }
  const input = JSON.parse(tool_calls[0].function.arguments)
  const output = { type: 'text', value: answered.content }
  const messages = [
    asked,
    { role: 'assistant', content: [{ type: 'tool-call', ...call, input }] },
    { role: 'tool', content: [{ type: 'tool-result', ...call, output }] },
  ]
  return { text: (await generateText(request(task, { messages, tools: weather(task) }))).text }
}

export async function stream(task) {
  const pieces = []
  for await (const piece of streamText(request(task)).textStream) pieces.push(piece)
  return pieces
}

export async function stream_usage(task) {
  const result = streamText(request(task))
  await result.consumeStream()
  return usage(await result.usage)
}

export async function cancel(task) {
  const controller = new AbortController()
  const result = streamText(request(task, { abortSignal: controller.signal }))
  for await (const _ of result.textStream) {
    controller.abort()
    break
  }
}

const calls = (found) => found.map((call) => ({ id: call.toolCallId, name: call.toolName, arguments: call.input }))

export async function tools(task, more = {}) {
  const done = await generateText(request(task, { tools: weather(task), ...more }))
  return { text: done.text, calls: calls(done.toolCalls) }
}

export async function stream_tools(task, more = {}) {
  const result = streamText(request(task, { tools: weather(task), ...more }))
  await result.consumeStream()
  return { text: await result.text, calls: calls(await result.toolCalls) }
}

export async function tool_loop(task) {
  const execute = async () => task.tool_answer
  const tools = { [task.tool.function.name]: { ...weather(task)[task.tool.function.name], execute } }
  const done = await generateText(request(task, { tools, stopWhen: stepCountIs(3) }))
  return { calls: calls(done.steps.flatMap((step) => step.toolCalls)), text: done.text }
}

export async function reasoning(task) {
  const done = await generateText(request(task))
  return { reasoning: done.reasoningText, text: done.text }
}

export async function stream_reasoning(task) {
  const result = streamText(request(task))
  await result.consumeStream()
  return { reasoning: await result.reasoningText, text: await result.text }
}

export const forced_tool = (task) => tools(task, { toolChoice: 'required' })

export async function structured(task) {
  return (await generateObject(request(task, { schema: jsonSchema(task.schema) }))).object
}

export async function embeddings(task) {
  const model = provider(task).embeddingModel(task.model)
  return (await embed({ model, value: task.question, maxRetries: task.retries })).embedding.length
}
