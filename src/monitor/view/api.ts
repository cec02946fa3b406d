/** The routes below /api: their parameters, and which reader answers. Bad parameters get a 400 that names them. */
import { createReadStream } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { Readable } from 'node:stream'
import type { Hono } from 'hono'
import { CLI } from '../../common/commands.ts'
import { numbersIn } from '../../common/folders.ts'
import { Cache } from './cache.ts'
import { compareConfigs } from './config.ts'
import type { Events } from './events.ts'
import { ViewError } from './guard.ts'
import { Kernels } from './kernels.ts'
import { openFile, parseRow, readSmall } from './lines.ts'
import { glossary } from './metrics.ts'
import { rolloutDetails, type TokenBytes } from './rollout.ts'
import { Rollouts } from './rollouts.ts'
import type { Run, Runs } from './runs.ts'
import { TimelineFile } from './timeline.ts'
import type { RolloutQuery, RunDetails } from './types.ts'

/** The most runs in one request: one may take up to 100 MB. */
const mostTokenizers = 4

interface ApiParts {
  runs: Runs
  events: Events
  tokenizer?: (model: string | null, runFolder: string) => Promise<TokenBytes | string>
  searchMs: number
}

const sorts = ['step', '-step', 'reward', '-reward', 'tokens', '-tokens', 'advantage', '-advantage'] as const

/** Adds the routes to the server. */
export function addApi(app: Hono, parts: ApiParts): void {
  const { runs, events, searchMs } = parts
  const rollouts = new Rollouts()
  const kernels = new Kernels()
  const timelines = new Map<string, TimelineFile>()
  const tokenizers = new Cache<Promise<TokenBytes | string>>(mostTokenizers, () => 1)

  const runOf = async (id: string): Promise<Run> => {
    const run = await runs.get(id)
    if (!run) throw new ViewError(404, `There is no run ${JSON.stringify(id.slice(0, 200))} in ${runs.root}.`)
    return run
  }
  const timelineOf = async (run: Run): Promise<TimelineFile> => {
    const file = timelines.get(run.id) ?? new TimelineFile(run.file('logs', 'timeline.jsonl'))
    timelines.set(run.id, file)
    await file.refresh()
    return file
  }
  const tokenizerOf = async (run: Run): Promise<TokenBytes | string> => {
    const { model } = await run.config()
    const open = parts.tokenizer
    if (!open) return 'this viewer was started without tokenizers'
    const key = `${run.path} ${model}`
    const opened = tokenizers.get(key, () => open(model, run.path))
    tokenizers.trim()
    const found = await opened
    // A missing model may be there later.
    if (typeof found === 'string') tokenizers.delete(key)
    return found
  }

  app.get('/api/runs', async (context) => context.json(await runs.list()))

  app.get('/api/runs/:id', async (context) => {
    const run = await runOf(context.req.param('id'))
    const { text, flat } = await run.config()
    const { versions, gitDiff } = await originOf(run)
    const details: RunDetails = {
      summary: await runs.summary(run),
      config: text,
      flat,
      ...(versions && { versions }),
      ...(gitDiff !== undefined && { gitDiff }),
      evalRows: (await runs.metrics(run)).evalRows(),
      rolloutSteps: await run.rolloutSteps(),
      timelineSteps: (await timelineOf(run)).steps,
    }
    return context.json(details)
  })

  app.get('/api/runs/:id/metrics', async (context) => {
    const run = await runOf(context.req.param('id'))
    const words = new Words(context.req.query())
    const keys = words.list('keys')
    const points = words.whole('points', 2, 1_000_000)
    return context.json((await runs.metrics(run)).answer(keys, words.whole('from') ?? -Infinity, points))
  })

  app.get('/api/runs/:id/rollouts', async (context) => {
    const run = await runOf(context.req.param('id'))
    return context.json(await rollouts.search(run, queryOf(new Words(context.req.query())), searchMs))
  })

  app.get('/api/runs/:id/rollouts/:step/:row', async (context) => {
    const run = await runOf(context.req.param('id'))
    const words = new Words(context.req.param())
    const place = { step: words.whole('step') ?? 0, row: words.whole('row') ?? 0 }
    const details = await rolloutDetails(run, rollouts, place, await tokenizerOf(run))
    if (!details) throw new ViewError(404, `Step ${place.step} of ${run.id} has no rollout on line ${place.row}.`)
    return context.json(details)
  })

  app.get('/api/runs/:id/timeline', async (context) => {
    const run = await runOf(context.req.param('id'))
    const step = new Words(context.req.query()).whole('step')
    return context.json(await (await timelineOf(run)).answer(step))
  })

  app.get('/api/runs/:id/kernels', async (context) => context.json(await kernels.answer(await runOf(context.req.param('id')))))

  app.get('/api/compare', async (context) => {
    const ids = new Words(context.req.query()).list('runs')
    if (ids.length === 0) throw new ViewError(400, 'runs: give the ids of the runs to compare, separated by commas.')
    const configs = await Promise.all(ids.map(async (id) => await (await runOf(id)).config()))
    return context.json(compareConfigs(ids, configs.map(({ flat }) => flat))) // prettier-ignore
  })

  app.get('/api/glossary', (context) => {
    const words = new Words(context.req.query())
    return context.json(glossary(words.has('keys') ? words.list('keys') : undefined))
  })

  app.get('/api/events', (context) => {
    const age = new Words(context.req.query()).number('age')
    // A page that lost its connection sends the id of its last event.
    const last = Number(context.req.header('last-event-id') || NaN)
    const since = Number.isFinite(last) ? last : age === undefined ? undefined : Date.now() - age
    return new Response(eventStream(events, since), { headers: { 'content-type': 'text/event-stream' } })
  })

  app.get('/report/:id', async (context) => {
    const run = await runOf(context.req.param('id'))
    const file = await openFile(run.file('report.html'))
    if (!file) throw new ViewError(404, `${run.id} has no report.html yet: ${CLI} report writes one.`)
    await file.close()
    // This policy lets the report load and run nothing, whatever it contains; its plots can be saved.
    context.header(
      'content-security-policy',
      "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads",
    )
    context.header('content-type', 'text/html; charset=utf-8')
    return context.body(Readable.toWeb(createReadStream(run.file('report.html'))) as ReadableStream)
  })
}

/** The versions and changes that the newest start of the run recorded (cli/run-origin.ts). */
async function originOf(run: Run): Promise<Pick<RunDetails, 'versions' | 'gitDiff'>> {
  const names = await readdir(run.file('logs')).catch(() => [])
  const newest = numbersIn(names, /^attempt_(\d{1,9})\.versions\.json$/).at(-1)
  if (newest === undefined) return {}
  const path = run.file('logs', `attempt_${newest}`)
  const [text, diff] = await Promise.all([readSmall(`${path}.versions.json`), readSmall(`${path}.diff`)])
  const found = text === null ? null : parseRow(Buffer.from(text))
  const versions = found && Object.fromEntries(Object.entries(found).map(([name, version]) => [name, String(version)]))
  return { ...(versions && { versions }), ...(diff !== null && { gitDiff: diff }) }
}

function queryOf(words: Words): RolloutQuery {
  const split = words.one('split', ['train', 'eval'])
  const query: RolloutQuery = {
    step: words.whole('step'),
    from: words.whole('from'),
    to: words.whole('to'),
    split,
    env: words.text('env'),
    group: words.text('group'),
    min_reward: words.number('min_reward'),
    max_reward: words.number('max_reward'),
    text: words.text('text'),
    sort: words.one('sort', sorts),
    limit: words.whole('limit', 0, 1000),
    offset: words.whole('offset', 0),
  }
  const error = words.one('error', ['true', 'false', '1', '0'])
  return { ...query, ...(error && { error: error === 'true' || error === '1' }) }
}

/** Query parameters of a request; errors name the parameter. Empty ones count as not given. */
class Words {
  readonly #words: Record<string, string>

  constructor(words: Record<string, string>) {
    this.#words = words
  }

  has(name: string): boolean {
    return Object.hasOwn(this.#words, name)
  }

  text(name: string): string | undefined {
    const word = this.has(name) ? this.#words[name] : ''
    return word === '' ? undefined : word
  }

  /** Commas inside a part are encoded twice. */
  list(name: string): string[] {
    const parts = (this.text(name) ?? '').split(',').filter((part) => part !== '')
    return parts.map((part) => {
      try {
        return decodeURIComponent(part)
      } catch {
        return part
      }
    })
  }

  number(name: string): number | undefined {
    const word = this.text(name)
    if (word === undefined) return undefined
    const value = Number(word)
    if (word.trim() !== '' && Number.isFinite(value)) return value
    throw new ViewError(400, `${name} is ${JSON.stringify(word.slice(0, 100))}: it must be a number.`)
  }

  whole(name: string, least = 0, most = 1e9): number | undefined {
    const value = this.number(name)
    if (value === undefined || (Number.isInteger(value) && value >= least && value <= most)) return value
    throw new ViewError(400, `${name} is ${value}: it must be a whole number from ${least} to ${most}.`)
  }

  one<T extends string>(name: string, choices: readonly T[]): T | undefined {
    const word = this.text(name)
    const found = choices.find((choice) => choice === word)
    if (word === undefined || found) return found
    throw new ViewError(400, `${name} is ${JSON.stringify(word.slice(0, 100))}: it must be one of ${choices.join(', ')}.`)
  }
}

/** Server-Sent Events, with times as ids, and a comment every 15 s that keeps the connection alive. */
function eventStream(events: Events, since: number | undefined): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder()
  let stop = (): void => {}
  return new ReadableStream({
    start(controller) {
      const send = (text: string): void => controller.enqueue(encoder.encode(text))
      const timer = setInterval(() => send(': here\n\n'), 15_000)
      const leave = events.listen((event, at) => send(`id: ${at}\ndata: ${JSON.stringify(event)}\n\n`), since)
      stop = () => {
        clearInterval(timer)
        leave()
      }
      send(`retry: 2000\nid: ${since ?? Date.now()}\n\n: here\n\n`)
    },
    cancel: () => stop(),
  })
}
