/**
 * How fast does the server answer? Clients over HTTP, 1, 8, 32 and 128 at once, each with a prompt of its own, or with one that all begin with.
 *
 *     node bench/serve.ts [--model models/SmolLM2-135M-Instruct.Q4_1.gguf] [--adapter DIR] [--clients 1,8,32,128] [--prompt 64] [--prefix 48] [--tokens 32] [--rounds 2] [--save]
 *
 * Starts `node cli.js serve` as a user would, with room for 128 sequences, asks /v1/completions for streams of token ids, greedily and without an end, and
 * measures at the client: tokens a second over all requests, from the first byte sent to the last received; the time to the first token (median, 99th of 100);
 * milliseconds a token after that; and decode, tokens a second from when the last of them has its first token to when the first of them has its last, so
 * while all are decoded together and no prompt is computed. With `--adapter`, a PEFT folder, requests name that adapter. All rows are measured in turn,
 * `--rounds` times, after requests of their size that are not counted; the best of each stands, and the least of its rates beside it says how busy the machine was. Before that, what the server answers to one client must be what it answers to it among 32.
 * The gain of 32 clients over one in tokens a second is by the medians of all rounds, as the best round of a single client may be a quarter above its
 * median. Prints a table and one line of JSON; `--save` writes bench/results/serve.json.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { hashSeed, Random } from '../src/common/random.ts'
import { rounded, text, wordsOf } from './words.ts'

const { values } = wordsOf(import.meta.filename, {
  options: {
    model: text('models/SmolLM2-135M-Instruct.Q4_1.gguf'),
    adapter: { type: 'string' },
    clients: text('1,8,32,128'),
    prompt: text('64'),
    prefix: text('48'),
    tokens: text('32'),
    rounds: text('2'),
    save: { type: 'boolean', default: false },
  },
})
const [promptTokens, prefix, tokens, rounds] = [values.prompt, values.prefix, values.tokens, values.rounds].map(Number)
const root = join(import.meta.dirname, '..')

const context = String(promptTokens + tokens)
const flags = [
  '--served-model-name',
  'model',
  '--port',
  '0',
  '--max-num-seqs',
  '128',
  '--max-model-len',
  context,
  '--log-level',
  'warn',
  ...(values.adapter ? ['--adapter', `adapter=${values.adapter}`] : []),
]
const server = spawn(process.execPath, ['cli.js', 'serve', '--model', values.model, ...flags], {
  cwd: root,
  stdio: ['ignore', 'pipe', 'inherit'],
})
const url = await new Promise<string>((resolve, reject) => {
  server.once('exit', (code) => reject(new Error(`the server ended with ${code}`)))
  createInterface({ input: server.stdout }).on('line', (line) => {
    const found = /http:\/\/\S+?:\d+/.exec(line)
    if (found) resolve(found[0])
  })
})
// As little work as possible, as this runs on the same cores as the server.
const agent = new Agent({ keepAlive: true })

/** Ids that every vocabulary has and that end nothing. */
function promptOf(round: string, index: number, shared: boolean): number[] {
  const ids = (seed: number, count: number): number[] => {
    const random = new Random(seed)
    return Array.from({ length: count }, () => 300 + random.int(4000))
  }
  const common = shared ? prefix : 0
  return [...ids(hashSeed('prefix', round), common), ...ids(hashSeed(round, index), promptTokens - common)]
}

interface Answer {
  ids: number[]
  /** When each token came, in milliseconds of this process. */
  times: number[]
  begin: number
}

async function ask(prompt: number[]): Promise<Answer> {
  const answer: Answer = { ids: [], times: [], begin: performance.now() }
  const sent = request(`${url}/v1/completions`, { method: 'POST', agent, headers: { 'content-type': 'application/json' } })
  const model = values.adapter ? 'adapter' : 'model'
  const changes = { max_tokens: tokens, temperature: 0, stream: true, ignore_eos: true, return_token_ids: true }
  sent.end(JSON.stringify({ model, prompt, ...changes }))
  const [response] = await once(sent, 'response')
  for await (const line of createInterface({ input: response })) {
    if (response.statusCode !== 200) throw new Error(`the server answers ${response.statusCode}: ${line}`)
    if (!line.startsWith('data: {')) continue
    const { token_ids: ids = [] } = (JSON.parse(line.slice(6)).choices[0] ?? {}) as { token_ids?: number[] }
    answer.ids.push(...ids)
    answer.times.push(...ids.map(() => performance.now()))
  }
  if (answer.ids.length !== tokens) throw new Error(`${answer.ids.length} tokens came of ${tokens}`)
  return answer
}

const at = (sorted: number[], share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]

async function measure(round: string, clients: number, shared: boolean) {
  const begin = performance.now()
  const answers = await Promise.all(Array.from({ length: clients }, (_, i) => ask(promptOf(round, i, shared))))
  const seconds = (performance.now() - begin) / 1000
  const first = answers.map(({ begin, times }) => times[0] - begin).toSorted((a, b) => a - b)
  const between = answers.map(({ times }) => (times.at(-1)! - times[0]) / Math.max(1, tokens - 1)).toSorted((a, b) => a - b)
  const [from, to] = [Math.max(...answers.map(({ times }) => times[0])), Math.min(...answers.map(({ times }) => times.at(-1)!))]
  const together = answers.flatMap(({ times }) => times.filter((time) => time > from && time <= to)).length
  return {
    clients,
    shared,
    tokensPerSecond: (clients * tokens) / seconds,
    firstTokenMs: at(first, 0.5),
    firstToken99Ms: at(first, 0.99),
    msPerToken: at(between, 0.5),
    // There is no such time if some end before others begin.
    decodeTokensPerSecond: to > from ? (together * 1000) / (to - from) : null,
  }
}

type Measured = Awaited<ReturnType<typeof measure>>
const shapes = values.clients
  .split(',')
  .flatMap((clients) => [false, true].map((shared) => ({ clients: Number(clients), shared })))
const seen = shapes.map((): Measured[] => [])
const rows: (Measured & { leastDecodeTokensPerSecond: number | null })[] = []
try {
  const among = await Promise.all(Array.from({ length: 32 }, (_, i) => ask(promptOf('check', i, true))))
  for (const i of [0, 31]) {
    const { ids } = await ask(promptOf('check', i, true))
    if (ids.join() !== among[i].ids.join()) throw new Error(`client ${i} gets other tokens alone than among 32`)
  }
  // Twice, as the kernels that a round compiles depend on how its requests come and go.
  for (const turn of [1, 2]) for (const { clients, shared } of shapes) await measure(`warm ${turn} ${clients}`, clients, shared)
  for (let round = 1; round <= rounds; round++) {
    for (const [i, { clients, shared }] of shapes.entries()) seen[i].push(await measure(`${round} ${clients}`, clients, shared))
    console.error(`round ${round} of ${rounds}`)
  }
  console.log('clients  prompts          tokens/s  first token, ms: median, 99%   ms a token  decode, tokens/s (least)')
  for (const measured of seen) {
    const row = measured.reduce((a, b) => (a.tokensPerSecond >= b.tokensPerSecond ? a : b))
    const decoded = measured.map((one) => one.decodeTokensPerSecond).filter((rate) => rate !== null)
    const decodeTokensPerSecond = decoded.length > 0 ? Math.max(...decoded) : null
    rows.push({ ...row, decodeTokensPerSecond, leastDecodeTokensPerSecond: decoded.length > 0 ? Math.min(...decoded) : null })
    const words = row.shared ? `${prefix} of ${promptTokens} shared` : `${promptTokens} of its own`
    const figures = [row.firstTokenMs, row.firstToken99Ms, row.msPerToken].map((value) => value.toFixed(0).padStart(8))
    const decode =
      decodeTokensPerSecond === null ? '-' : `${decodeTokensPerSecond.toFixed(1)} (${Math.min(...decoded).toFixed(1)})`
    console.log(
      `${String(row.clients).padStart(7)}  ${words.padEnd(15)}  ${row.tokensPerSecond.toFixed(1).padStart(8)}  ${figures.join('  ')}  ${decode.padStart(8)}`,
    )
  }
} finally {
  server.kill('SIGTERM')
  await once(server, 'exit')
}
/** The rates `of` all rounds with so many clients, with separate and with shared prompts. */
const rateOf = (count: number, of: (rates: number[]) => number): number =>
  of(seen.flat().flatMap(({ clients, decodeTokensPerSecond: rate }) => (clients === count && rate !== null ? [rate] : [])))
const median = (rates: number[]): number =>
  at(
    rates.toSorted((a, b) => a - b),
    0.5,
  )
const decodeRatio = rateOf(32, median) / rateOf(1, median)
const decodeRatioOfBest = rateOf(32, (rates) => Math.max(...rates)) / rateOf(1, (rates) => Math.max(...rates))
if (decodeRatio > 0)
  console.log(
    `decoded together, 32 clients get ${decodeRatio.toFixed(2)} times the tokens a second of one (the best of each: ${decodeRatioOfBest.toFixed(2)})`,
  )
const result = {
  date: new Date().toISOString(),
  model: values.model,
  adapter: values.adapter !== undefined,
  promptTokens,
  prefix,
  tokens,
  rounds,
  decodeRatio,
  decodeRatioOfBest,
  rows,
}
const json = JSON.stringify(result, rounded)
console.log(json)
if (values.save) writeFileSync(join(import.meta.dirname, 'results/serve.json'), `${json}\n`)
