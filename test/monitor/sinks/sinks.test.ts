/** Sinks against what the real programs write and send: recorded (wandb), decoded by hand (TensorBoard), and what holds for all of them. */
import { spawnSync } from 'node:child_process'
import { appendFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { pathToFileURL } from 'node:url'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { Follower } from '../../../src/monitor/sinks/follow.ts'
import { checkSinks, followRun } from '../../../src/monitor/sinks/index.ts'
import { openMlflow } from '../../../src/monitor/sinks/mlflow.ts'
import { crc32c } from '../../../src/monitor/sinks/tensorboard.ts'
import { flatConfig, type OpenSink, type RunEnd, type Sink } from '../../../src/monitor/sinks/types.ts'
import type { MetricsRow } from '../../../src/monitor/metrics-writer.ts'
import { openRunFolder } from '../../../src/monitor/run-folder.ts'

interface Recorded {
  method: string
  path: string
  authorization: string
  contentType: string
  body: { query?: string; operationName?: string; variables?: { config: Record<string, unknown> }; files?: Files; complete?: boolean; exitcode?: number } // prettier-ignore
}
type Files = Record<string, { offset: number; content: string[] }>

let dir: string
let path: string
let server: Server | undefined
const environment = { ...process.env }
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'dawn-rl-sinks-'))
  path = join(dir, 'my-run')
  mkdirSync(path)
})
afterEach(() => {
  server?.close()
  server = undefined
  process.env = { ...environment }
  rmSync(dir, { recursive: true, force: true })
})

const config = { model: 'tiny', trainer: { args: { lr: 1e-4 } } }
const run = () => ({ path, name: 'my-run', config })
const rows = (steps: number[], time = 1000): MetricsRow[] =>
  steps.map((step) => ({ step, time: time + step, reward: step / 4, 'eval/a/avg@1': 0.25, 'loss/mean': null }))
const append = (more: MetricsRow[]) =>
  appendFileSync(join(path, 'metrics.jsonl'), more.map((row) => `${JSON.stringify(row)}\n`).join(''))
const rewrite = (all: MetricsRow[]) => {
  rmSync(join(path, 'metrics.jsonl'))
  append(all)
}

/** A server that notes what it is sent, and answers by `answer`: an object, or a status. */
async function listen(answer: (request: Recorded) => unknown): Promise<{ url: string; got: Recorded[] }> {
  const got: Recorded[] = []
  server = createServer((request, response) => {
    let text = ''
    request.on('data', (chunk: Buffer) => (text += chunk.toString()))
    request.on('end', () => {
      const made = {
        method: request.method!, path: request.url!, authorization: request.headers.authorization!.split(' ')[0],
        contentType: request.headers['content-type']!, body: JSON.parse(text || '{}') as Recorded['body'],
      } // prettier-ignore
      got.push(made)
      const reply = answer(made)
      response.statusCode = typeof reply === 'number' ? reply : 200
      response.end(JSON.stringify(typeof reply === 'number' ? {} : reply))
    })
  })
  await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, got }
}

test('wandb: the requests of its own client, but for its own telemetry', async () => {
  const { requests } = JSON.parse(readFileSync(new URL('wandb.json', import.meta.url), 'utf8')) as { requests: Recorded[] }
  const theirs = requests.at(-1)!
  const bucket = { name: 'abc12345', project: { name: 'proj', entity: { name: 'ent' } } }
  const { url, got } = await listen(({ path: at }) => (at === '/graphql' ? { data: { upsertBucket: { bucket } } } : {}))
  Object.assign(process.env, { WANDB_BASE_URL: url, WANDB_API_KEY: 'k', WANDB_PROJECT: 'proj', WANDB_ENTITY: 'ent' })
  append(rows([1, 2]))
  expect(await followRun(['wandb'], run(), { warn: () => {} }).close()).toEqual([])
  const [made, sent, ended] = got
  const upsert = requests.findLast((request) => request.path === '/graphql')!
  for (const key of ['method', 'path', 'authorization', 'contentType'] as const) {
    expect(made[key]).toBe(upsert[key])
    expect(sent[key]).toBe(theirs[key])
  }
  // The same mutation with the same names, and config and axes as the client writes them in the end.
  expect(upsert.body.query).toContain('upsertBucket(input: {')
  for (const name of made.body.query!.matchAll(/(\w+): \$(\w+)/g)) expect(upsert.body.query).toContain(`${name[1]}:$${name[2]}`)
  const ours = JSON.parse(made.body.variables!.config as unknown as string) as Record<string, unknown>
  expect(ours).toEqual(upsert.body.variables!.config)
  const lines = (files: Files, name: string) => files[name].content.map((line) => JSON.parse(line) as Record<string, unknown>)
  const untimed = (line: Record<string, unknown>) =>
    Object.fromEntries(Object.entries(line).filter(([key]) => !/^_(timestamp|runtime|wandb)$/.test(key)))
  const history = 'wandb-history.jsonl'
  expect(Object.keys(sent.body.files!)).toEqual(Object.keys(theirs.body.files!))
  expect(sent.body.files![history].offset).toBe(theirs.body.files![history].offset)
  const [first, second] = lines(sent.body.files!, history)
  const [theirFirst, theirSecond] = lines(theirs.body.files!, history)
  expect(Object.keys(first).toSorted()).toEqual([...Object.keys(theirFirst), 'loss/mean'].toSorted())
  expect(untimed(first)).toMatchObject({ ...untimed(theirFirst), reward: 0.25 })
  expect(untimed(second)).toMatchObject({ ...untimed(theirSecond), reward: 0.5 })
  expect(Object.keys(lines(sent.body.files!, 'wandb-summary.json')[0]).toSorted()).toEqual(
    Object.keys(lines(theirs.body.files!, 'wandb-summary.json')[0]).toSorted(),
  )
  expect(ended.body).toEqual({ complete: theirs.body.complete, exitcode: theirs.body.exitcode })

  // Another start goes on in the same run, at the next line.
  append(rows([3]))
  await followRun(['wandb'], run(), { warn: () => {} }).close()
  expect(got.at(-2)!.body.files![history].offset).toBe(2)
  expect((got.at(-3)!.body.variables as unknown as { name: string }).name).toBe(
    (made.body.variables as unknown as { name: string }).name,
  )

  // The summary is replaced as a whole, and has what no row of this start says.
  append([{ step: 4, time: 1004, reward: 1 }])
  await followRun(['wandb'], run(), { warn: () => {} }).close()
  expect(lines(got.at(-2)!.body.files!, 'wandb-summary.json')[0]).toMatchObject({ step: 4, reward: 1, 'eval/a/avg@1': 0.25 })
})

test('wandb: a run whose steps are long is heard of in between, as its own client does, and is not taken for a crashed one', async () => {
  const bucket = { name: 'r', project: { name: 'p', entity: { name: 'e' } } }
  const { url, got } = await listen(() => ({ data: { upsertBucket: { bucket } } }))
  Object.assign(process.env, { WANDB_BASE_URL: url, WANDB_API_KEY: 'k' })
  const said: string[] = []
  const options = { warn: (line: string) => said.push(line), everyMs: 5, beatMs: 50 }
  const sinks = followRun(['wandb'], run(), options)
  append(rows([1]))
  const beats = () => got.filter(({ path: asked, body }) => asked.endsWith('/file_stream') && Object.keys(body).length === 0)
  await expect.poll(() => beats().length).toBeGreaterThan(1)
  await sinks.close()
  expect(got.at(-1)!.body).toEqual({ complete: true, exitcode: 0 })
  expect(said).toEqual([])
})

test('a sink that is away is said once, stops nothing, and has every row in the end', async () => {
  let away = true
  const bucket = { name: 'r', project: { name: 'p', entity: { name: 'e' } } }
  const { url, got } = await listen(({ path: at }) =>
    away ? 500 : at === '/graphql' ? { data: { upsertBucket: { bucket } } } : {},
  )
  Object.assign(process.env, { WANDB_BASE_URL: url, WANDB_API_KEY: 'k' })
  const said: string[] = []
  append(rows([1, 2]))
  const sinks = followRun(['wandb'], run(), { warn: (line) => said.push(line), everyMs: 5 })
  await expect.poll(() => got.length).toBeGreaterThan(2)
  expect(said).toHaveLength(1)
  expect(said[0]).toMatch(/^wandb: metrics cannot be sent for now \(\/graphql answered 500/)
  append(rows([3]))
  away = false
  await expect.poll(() => said.length, { timeout: 5000 }).toBe(2)
  expect(await sinks.close()).toEqual([])
  const lines = got.flatMap((request) => request.body.files?.['wandb-history.jsonl'].content ?? [])
  expect(lines.map((line) => (JSON.parse(line) as { step: number }).step)).toEqual([1, 2, 3])

  // One that stays away is told at the end, with what to do, and the next start sends the rest.
  server!.close()
  append(rows([4]))
  const late = followRun(['wandb'], run(), { warn: (line) => said.push(line), everyMs: 5 })
  expect(await late.close()).toEqual(['wandb'])
  expect(said.at(-2)).toMatch(/\(http:\/\/127\.0\.0\.1:\d+ cannot be reached: (ECONNREFUSED|ECONNRESET|UND_ERR_SOCKET)\)/)
  expect(said.at(-1)).toContain('1 rows of metrics.jsonl were not sent')
})

test('a sink to which many rows are too many at once gets fewer at a time', async () => {
  const sent: number[] = []
  const open: OpenSink = () => ({
    send: (some) => {
      if (some.length > 30) return Promise.reject(new Error('413: too large'))
      sent.push(...some.map(({ step }) => step))
      return Promise.resolve({})
    },
    finish: () => Promise.resolve(),
  })
  const steps = Array.from({ length: 500 }, (_, i) => i + 1)
  append(rows(steps))
  const said: string[] = []
  expect(await new Follower('x', run(), open, { warn: (line) => said.push(line) }).close()).toBe(true)
  expect(sent).toEqual(steps)
  expect(said).toHaveLength(2)
  expect(said[1]).toBe('x: it can be reached again, and has all metrics.')
})

test('a sink that was away catches up with a long run: what is left is not read whole after each send', async () => {
  let sent = 0
  let away = true
  const open: OpenSink = () => ({
    send: (some) => {
      if (away) {
        away = false
        return Promise.reject(new Error('503'))
      }
      sent += some.length
      return Promise.resolve({})
    },
    finish: () => Promise.resolve(),
  })
  append(rows(Array.from({ length: 30_000 }, (_, i) => i + 1)))
  const begin = process.cpuUsage()
  expect(await new Follower('x', run(), open, { warn: () => {}, closeMs: 60_000 }).close()).toBe(true)
  // It took 6 s, in which nothing else ran.
  expect(process.cpuUsage(begin).user / 1e6).toBeLessThan(2)
  expect(sent).toBe(30_000)
}, 60_000)

test.runIf(process.platform === 'linux')(
  'a sink that begins late reads a long run once, and not all that is left for each send',
  async () => {
    const wide = Object.fromEntries(Array.from({ length: 120 }, (_, i) => [`a/metric/of/some/length/${i}`, i / 7]))
    append(rows(Array.from({ length: 4000 }, (_, i) => i + 1)).map((row) => ({ ...row, ...wide })))
    const { size } = statSync(join(path, 'metrics.jsonl'))
    const open: OpenSink = () => ({ send: () => Promise.resolve({}), finish: () => Promise.resolve() })
    const bytesRead = () => Number(/rchar: (\d+)/.exec(readFileSync('/proc/self/io', 'utf8'))![1])
    const before = bytesRead()
    expect(await new Follower('x', run(), open, { warn: () => {}, closeMs: 60_000 }).close()).toBe(true)
    // It was the half of the file for each 200 rows, in the middle of a run: 40 GB where there were 100,000.
    expect((bytesRead() - before) / size).toBeLessThan(3)
  },
)

test('a sink that fails once more at the end of the run, as while it restarts, is tried again: the last row, and that the run ended', async () => {
  const failures = { send: 0, finish: 1 }
  const sent: number[] = []
  const ended: boolean[] = []
  const open: OpenSink = () => ({
    send: (some) => {
      if (failures.send-- > 0) return Promise.reject(new Error('503'))
      sent.push(...some.map(({ step }) => step))
      return Promise.resolve({})
    },
    finish: (_, { failed }) => {
      if (failures.finish-- > 0) return Promise.reject(new Error('503'))
      ended.push(failed)
      return Promise.resolve()
    },
  })
  const said: string[] = []
  append(rows([1]))
  const follower = new Follower('x', run(), open, { warn: (line) => said.push(line), everyMs: 20 })
  follower.start()
  await expect.poll(() => sent).toEqual([1])
  append(rows([2]))
  failures.send = 2
  expect(await follower.close()).toBe(true)
  expect({ sent, ended }).toEqual({ sent: [1, 2], ended: [false] })
  expect(said.at(-1)).toBe('x: it can be reached again, and has all metrics.')
})

test('a sink that has every row but never ends its run: no rows are said to be missing', async () => {
  const open: OpenSink = () => ({
    send: () => Promise.resolve({}),
    finish: (signal) =>
      new Promise((_, reject) => signal.addEventListener('abort', () => setTimeout(() => reject(new Error('late')), 5))),
  })
  append(rows([1]))
  const said: string[] = []
  expect(await new Follower('x', run(), open, { warn: (line) => said.push(line), closeMs: 50 }).close()).toBe(true)
  await new Promise((resolve) => setTimeout(resolve, 50))
  expect(said).toEqual(['x: the run could not be marked as ended (no answer in 0.05 s); all its metrics were sent.'])
})

test('a server that never answers is given up at the end of the run', async () => {
  const { url } = await listen(() => undefined)
  server!.removeAllListeners('request')
  Object.assign(process.env, { WANDB_BASE_URL: url, WANDB_API_KEY: 'k' })
  append(rows([1]))
  const begin = performance.now()
  expect(await followRun(['wandb'], run(), { warn: () => {}, closeMs: 200 }).close()).toEqual(['wandb'])
  expect(performance.now() - begin).toBeLessThan(10_000)
  server!.closeAllConnections()
})

test('rows that a resumed run makes again are sent, also where the clock was set back in between', async () => {
  const sent: number[] = []
  const rewinds: boolean[] = []
  const open: OpenSink = (_, state, rewound) => {
    rewinds.push(rewound)
    const send: Sink['send'] = (some) => (sent.push(...some.map(({ time }) => time)), Promise.resolve(state))
    return { send, finish: () => Promise.resolve() }
  }
  const follow = async () => await new Follower('x', run(), open, { warn: () => {} }).close()
  const folder = openRunFolder({ outputDir: dir, runName: 'my-run', configText: '' })
  append(rows([1, 2, 3, 4]))
  await follow()
  folder.rewind(2)
  append(rows([3, 4], 1000.5 - 1))
  await follow()
  await follow()
  expect(sent).toEqual([1001, 1002, 1003, 1004, 1002.5, 1003.5])
  expect(rewinds).toEqual([false, true])
  // Rows that were not sent before they were taken back.
  append(rows([5, 6]))
  folder.rewind(4)
  append(rows([5], 900))
  await follow()
  expect(sent.slice(6)).toEqual([905])
  expect(rewinds).toEqual([false, true, false])
  folder.close()
})

test('a row is sent once, whatever happens to the run: kills, torn lines, steps that are taken back', async () => {
  const sent: number[] = []
  const rewinds: boolean[] = []
  const open: OpenSink = (_, state, rewound) => {
    rewinds.push(rewound)
    return {
      send: (some) => {
        sent.push(...some.map(({ time }) => time))
        return Promise.resolve({ count: Number(state.count ?? 0) + some.length })
      },
      finish: () => Promise.resolve(),
    }
  }
  const follow = async () => await new Follower('x', run(), open, { warn: () => {} }).close()
  append(rows([1, 2, 3]))
  await follow()
  await follow()
  expect(sent).toEqual([1001, 1002, 1003])
  appendFileSync(join(path, 'metrics.jsonl'), '{"step": 4, "ti')
  await follow()
  // A resumed run: step 3 was taken back and is made again, later.
  rewrite([...rows([1, 2]), ...rows([3, 4], 2000)])
  await follow()
  expect(sent).toEqual([1001, 1002, 1003, 2003, 2004])
  expect(rewinds).toEqual([false, true])
  // Shorter than what was sent, and nothing new.
  rewrite(rows([1]))
  await follow()
  append(rows([2], 3000))
  await follow()
  expect(sent.slice(5)).toEqual([3002])
  // A cursor file that is no JSON begins again.
  writeFileSync(join(path, 'sinks', 'x.json'), '{')
  await follow()
  expect(sent.slice(6)).toEqual([1001, 3002])
})

/** Fields of a protocol buffer: number to the values that it has. */
function fields(data: Buffer): Map<number, (number | Buffer)[]> {
  const found = new Map<number, (number | Buffer)[]>()
  for (let at = 0; at < data.length;) {
    const varint = () => {
      let [value, scale, byte] = [0, 1, 128]
      while (byte & 128) {
        byte = data[at++]
        value += (byte & 127) * scale
        scale *= 128
      }
      return value
    }
    const tag = varint()
    const read = {
      0: varint,
      1: () => data.readDoubleLE((at += 8) - 8),
      2: () => {
        const length = varint()
        return data.subarray(at, (at += length))
      },
      5: () => data.readFloatLE((at += 4) - 4),
    }[tag & 7 as 0 | 1 | 2 | 5]! // prettier-ignore
    found.set(tag >> 3, [...(found.get(tag >> 3) ?? []), read()])
  }
  return found
}

/** The events of a file, whose records must be whole and have their checksums. */
function eventsOf(data: Buffer): Map<number, (number | Buffer)[]>[] {
  const events: Map<number, (number | Buffer)[]>[] = []
  const unmask = (value: number) => {
    const rotated = (value - 0xa282ead8) >>> 0
    return ((rotated >>> 17) | (rotated << 15)) >>> 0
  }
  for (let at = 0; at < data.length;) {
    const length = Number(data.readBigUInt64LE(at))
    expect(unmask(data.readUInt32LE(at + 8))).toBe(crc32c(data.subarray(at, at + 8)))
    const event = data.subarray(at + 12, at + 12 + length)
    expect(unmask(data.readUInt32LE(at + 12 + length))).toBe(crc32c(event))
    events.push(fields(event))
    at += length + 16
  }
  return events
}

test('TensorBoard: records with their checksums, and events in them', async () => {
  expect(crc32c(Buffer.from('123456789'))).toBe(0xe3069283)
  append(rows([1, 300]))
  await followRun(['tensorboard'], run(), { warn: () => {} }).close()
  const folder = join(path, 'tensorboard')
  const [file] = readdirSync(folder)
  expect(file).toMatch(/^events\.out\.tfevents\.\d{10}\./)
  const data = readFileSync(join(folder, file))
  const events = eventsOf(data)
  expect(events).toHaveLength(3)
  expect(String(events[0].get(3))).toBe('brain.Event:2')
  expect(events.slice(1).map((event) => [event.get(1), event.get(2)])).toEqual([[[1001], [1]], [[1300], [300]]]) // prettier-ignore
  const values = fields(events[2].get(5)![0] as Buffer).get(1)!.map((value) => fields(value as Buffer)) // prettier-ignore
  expect(values.map((value) => [String(value.get(1)), value.get(2)![0]])).toEqual([
    ['reward', 75],
    ['eval/a/avg@1', 0.25],
  ])
})

test.skipIf(process.platform === 'win32')(
  'TensorBoard: what a full disk took of a row is taken back: readers would stop there',
  () => {
    const url = pathToFileURL(join(import.meta.dirname, '../../../src/monitor/sinks/tensorboard.ts')).href
    const script = `import { openTensorboard } from ${JSON.stringify(url)}
    const sink = openTensorboard({ path: ${JSON.stringify(path)}, name: 'r', config: {} }, {}, false)
    const metrics = Object.fromEntries(Array.from({ length: 20 }, (_, i) => ['metric/' + i, i]))
    try {
      for (let step = 1; ; step++) await sink.send([{ step, time: step, ...metrics }], AbortSignal.timeout(9999))
    } catch (error) {
      console.log(error.code)
    }`
    // A limit on the size of files, which cuts a write off as a full disk does.
    const words = ['-c', 'ulimit -f 16; trap "" XFSZ; exec "$0" --input-type=module -e "$1"', process.execPath, script]
    expect(spawnSync('bash', words, { encoding: 'utf8' }).stdout).toBe('EFBIG\n')
    const folder = join(path, 'tensorboard')
    expect(eventsOf(readFileSync(join(folder, readdirSync(folder)[0]))).length).toBeGreaterThan(10)
  },
)

test('Trackio: rows in its tables, each once', async () => {
  Object.assign(process.env, { TRACKIO_DIR: join(dir, 'trackio'), TRACKIO_PROJECT: 'my.project' })
  append(rows([1, 2]))
  await followRun(['trackio'], run(), { warn: () => {} }).close()
  const cursor = join(path, 'sinks', 'trackio.json')
  const { state } = JSON.parse(readFileSync(cursor, 'utf8')) as { state: object }
  // Killed before it noted what it had sent.
  writeFileSync(cursor, JSON.stringify({ offset: 0, line: '', time: 0, state }))
  append(rows([3]))
  await followRun(['trackio'], run(), { warn: () => {} }).close()
  const db = new DatabaseSync(join(dir, 'trackio', 'myproject.db'), { readOnly: true })
  const all = db.prepare('SELECT step, run_name, metrics FROM metrics ORDER BY id').all()
  expect(all.map(({ step, run_name: name }) => [step, name])).toEqual([[1, 'my-run'], [2, 'my-run'], [3, 'my-run']]) // prettier-ignore
  expect(JSON.parse(String(all[0].metrics))).toEqual({ reward: 0.25, 'eval/a/avg@1': 0.25, 'loss/mean': null })
  expect(JSON.parse(String(db.prepare('SELECT config FROM configs').get()!.config))).toMatchObject({
    'trainer.args.lr': '0.0001',
  })
  // A start with another config: that one is shown, and the run is as old as it was.
  append(rows([4]))
  await followRun(['trackio'], { ...run(), config: { trainer: { args: { lr: 2 } } } }, { warn: () => {} }).close()
  const configs = db.prepare('SELECT config, created_at FROM configs').all()
  expect(configs.map(({ config: text, created_at: at }) => [JSON.parse(String(text)), at])).toEqual([
    [{ 'trainer.args.lr': '2', _Username: null, _Created: '1970-01-01T00:16:41.000Z', _Group: null }, '1970-01-01T00:16:41.000Z'],
  ])
  db.close()
})

test('Trackio: the process goes on while another one has the database', async () => {
  Object.assign(process.env, { TRACKIO_DIR: join(dir, 'busy'), TRACKIO_PROJECT: 'busy' })
  mkdirSync(join(dir, 'busy'))
  const other = new DatabaseSync(join(dir, 'busy', 'busy.db'))
  other.exec('CREATE TABLE t (x); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)')
  const free = setTimeout(() => other.exec('COMMIT'), 300)
  onTestFinished(() => clearTimeout(free))
  append(rows([1, 2]))
  const warnings: string[] = []
  expect(await followRun(['trackio'], run(), { warn: (line) => warnings.push(line) }).close()).toEqual([])
  expect(warnings).toEqual([])
  expect(other.prepare('SELECT step FROM metrics').all()).toHaveLength(2)
  other.close()
})

test('MLflow: a run whose config did not arrive at first gets it with the next try', async () => {
  const answers = [503]
  const { url, got } = await listen(({ path: asked, body }) => {
    if (asked.includes('get-by-name')) return { experiment: { experiment_id: '1' } }
    if (asked.endsWith('runs/create')) return { run: { info: { run_id: 'r1', status: 'RUNNING' } } }
    return 'params' in body ? (answers.pop() ?? {}) : {}
  })
  Object.assign(process.env, { MLFLOW_TRACKING_URI: url, MLFLOW_TRACKING_TOKEN: 'secret' })
  let sink = openMlflow(run(), {}, false, () => {})
  const send = async () => await sink.send(rows([1, 2]), AbortSignal.timeout(30_000))
  const sent = () =>
    got.splice(0).map(({ path: asked, body }) => `${asked.split('/').at(-1)!.split('?')[0]}${'params' in body ? ' params' : ''}`)
  await expect(send()).rejects.toThrow('answered 503')
  expect(await send()).toEqual({ id: 'r1' })
  expect(await send()).toEqual({ id: 'r1' })
  expect(sent()).toEqual(['get-by-name', 'create', 'log-batch params', 'log-batch params', 'log-batch', 'log-batch'])
  // A config that is refused holds no metrics back.
  answers.push(400)
  sink = openMlflow(run(), {}, false, () => {})
  await expect(send()).rejects.toThrow('answered 400')
  expect(await send()).toEqual({ id: 'r1' })
  expect(sent()).toEqual(['get-by-name', 'create', 'log-batch params', 'update', 'log-batch'])
})

test('MLflow: names are such as it takes, those of environments that are files too', async () => {
  const { url, got } = await listen(({ path: asked }) => {
    if (asked.includes('get-by-name')) return { experiment: { experiment_id: '1' } }
    return asked.endsWith('runs/create') ? { run: { info: { run_id: 'r1', status: 'RUNNING' } } } : {}
  })
  Object.assign(process.env, { MLFLOW_TRACKING_URI: url, MLFLOW_TRACKING_TOKEN: 'secret' })
  const names = [
    'reward',
    'eval/./my_env.ts/avg@1',
    'eval/../up/my env.ts/avg@1',
    'reward//srv/env.ts/mean',
    'reward/ü,/',
    'reward/准确',
    'reward/格式',
  ]
  append([{ step: 1, time: 1, ...Object.fromEntries(names.map((name) => [name, 1])) }])
  await followRun(['mlflow'], run(), { warn: () => {} }).close()
  const sent = got.flatMap(({ body }) => (body as { metrics?: { key: string }[] }).metrics ?? [])
  expect(sent.map(({ key }) => key)).toEqual([
    'reward/all/mean', 'eval/my_env.ts/avg_at_1', 'eval/__/up/my env.ts/avg_at_1', 'reward/srv/env.ts/mean', 'reward/ü_',
    'reward/准确', 'reward/格式',
  ]) // prettier-ignore
})

test('MLflow: a metric that it refuses holds nothing back; a run that takes none is not left out piece by piece', async () => {
  let deleted = false
  let elsewhere = false
  const { url, got } = await listen(({ path: asked, body }) => {
    if (asked.includes('get-by-name')) return { experiment: { experiment_id: '1' } }
    if (asked.endsWith('runs/create')) return { run: { info: { run_id: 'r1', status: 'RUNNING' } } }
    if (elsewhere && asked.endsWith('runs/update')) return 404
    const { metrics = [] } = body as { metrics?: { key: string }[] }
    return metrics.length > 0 && (deleted || metrics.some(({ key }) => key === 'bad')) ? 400 : {}
  })
  Object.assign(process.env, { MLFLOW_TRACKING_URI: url, MLFLOW_TRACKING_TOKEN: 'secret' })
  const sent = () => got.splice(0).flatMap(({ body }) => (body as { metrics?: { key: string; step: number }[] }).metrics ?? [])
  const row = (step: number) => ({ step, time: step, 'loss/mean': 1, ...(step > 2 && { bad: 1 }), 'optim/lr': 1 })
  append([1, 2, 3, 4, 5].map(row))
  const said: string[] = []
  const warn = (line: string) => said.push(line)
  expect(await followRun(['mlflow'], run(), { warn }).close()).toEqual([])
  expect(said).toHaveLength(3)
  expect(said[1]).toMatch(/^mlflow: it refuses bad \(.*answered 400.*\)\. They are left out there; metrics\.jsonl has them\.$/)
  const there = sent()
  for (const key of ['loss/mean', 'optim/lr'])
    expect([...new Set(there.flatMap((one) => (one.key === key ? one.step : [])))], key).toEqual([1, 2, 3, 4, 5])

  deleted = true
  append([row(6)])
  expect(await followRun(['mlflow'], run(), { warn }).close()).toEqual(['mlflow'])
  expect(said.at(-1)).toContain('1 rows of metrics.jsonl were not sent')
  elsewhere = true
  expect(await followRun(['mlflow'], run(), { warn }).close()).toEqual(['mlflow'])
  expect(said.at(-2)).toContain('To send all of it as a new run, delete sinks/mlflow.json in the run folder')
})

test('a run that failed is a failed one, when it ended, also where that is sent later; one that goes on afterwards is not', async () => {
  const bucket = { name: 'r', project: { name: 'p', entity: { name: 'e' } } }
  const { url, got } = await listen(({ path: asked }) => {
    if (away) return 503
    if (asked === '/graphql') return { data: { upsertBucket: { bucket } } }
    if (asked.includes('get-by-name')) return { experiment: { experiment_id: '1' } }
    return asked.endsWith('runs/create') ? { run: { info: { run_id: 'r1', status: 'RUNNING' } } } : {}
  })
  Object.assign(process.env, { WANDB_BASE_URL: url, WANDB_API_KEY: 'k', MLFLOW_TRACKING_URI: url, MLFLOW_TRACKING_TOKEN: 's' })
  let away = false
  const ends = async (end?: RunEnd) => {
    await followRun(['wandb', 'mlflow'], run(), { warn: () => {}, everyMs: 1 }).close(end)
    const bodies = got.splice(0).map(({ body }) => body as { exitcode?: number; status?: string; end_time?: number })
    const said = bodies.flatMap(({ exitcode, status, end_time: time }) =>
      exitcode === undefined ? (status === undefined ? [] : `${status}${time ? ` at ${time / 1000}` : ''}`) : `code ${exitcode}`,
    )
    return away ? 'away' : said.toSorted()
  }
  append(rows([1]))
  expect(await ends('failed')).toEqual(['FAILED at 1001', 'code 1'])
  append(rows([2]))
  expect(await ends('finished')).toEqual(['FINISHED at 1002', 'RUNNING', 'code 0'])
  expect(await ends()).toEqual([])
  // Sent while the run goes on, and once more after it was killed without another row.
  append(rows([3]))
  expect(await ends('goes on')).toEqual(['RUNNING'])
  expect(await ends('failed')).toEqual(['FAILED at 1003', 'code 1'])
  // It failed while the sinks were away, before and after its first row.
  for (const all of [[4], [1, 2]]) {
    if (all[0] === 1) {
      rmSync(path, { recursive: true })
      mkdirSync(path)
    }
    append(rows(all))
    away = true
    await ends('failed')
    away = false
    expect((await ends()).slice(0, 1)).toEqual([`FAILED at ${1000 + all.at(-1)!}`])
  }
})

test('what a sink lacks is said before anything begins', () => {
  delete process.env.WANDB_API_KEY
  process.env.MLFLOW_TRACKING_URI = 'file:///tmp'
  // Of report --sync too, where no report_to was written.
  expect(() => checkSinks(['wandb'])).toThrow(/^wandb needs a key, but WANDB_API_KEY is not set/)
  Object.assign(process.env, { WANDB_API_KEY: 'k', WANDB_MODE: 'online' })
  expect(() => checkSinks(['wandb'])).not.toThrow()
  process.env.WANDB_MODE = 'offline'
  expect(() => checkSinks(['wandb'])).toThrow(
    /^WANDB_MODE=offline says that nothing is sent, .*Leave wandb out; .*--sync wandb` sends a run later\.$/,
  )
  expect(() => checkSinks(['tensorboard', 'mlflow'])).toThrow('MLFLOW_TRACKING_URI is not an http address')
  expect(flatConfig({ a: { b: [1, 2], c: [{ d: 'x' }] } })).toEqual([['a.b', '[1,2]'], ['a.c.0.d', 'x']]) // prettier-ignore
})
