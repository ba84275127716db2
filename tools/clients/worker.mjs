// worker.py for clients of Node: node worker.mjs ADAPTER, both copied into the folder with the client's node_modules.

import { createInterface } from 'node:readline'

function* chain(error) {
  for (const seen = new Set(); error instanceof Error && !seen.has(error); error = error.lastError ?? error.cause) {
    seen.add(error)
    yield error
  }
}

function classes(error) {
  const names = []
  for (let kind = error.constructor; kind?.name; kind = Object.getPrototypeOf(kind)) names.push(kind.name)
  return error instanceof DOMException ? [error.name, ...names] : names
}

function described(error) {
  const all = [...chain(error)]
  const server = all.map((each) => each.error ?? each.data?.error).find((body) => typeof body?.message === 'string')
  return {
    class: classes(error)[0],
    classes: classes(error),
    message: error.message,
    status: all.map((each) => each.status ?? each.statusCode).find((status) => status !== undefined) ?? null,
    server: server ?? null,
  }
}

async function answer(adapter, call, task) {
  if (!(call in adapter)) return { absent: true }
  try {
    return { returned: (await adapter[call](task)) ?? null }
  } catch (error) {
    return { raised: described(error) }
  }
}

const write = process.stdout.write.bind(process.stdout)
console.log = console.error
const adapter = await import(`./${process.argv[2]}.mjs`)
for await (const line of createInterface({ input: process.stdin })) {
  const { call, task } = JSON.parse(line)
  write(JSON.stringify(await answer(adapter, call, task)) + '\n')
}
