/**
 * The differences between two finished runs, in sentences (bench/kill-runs.ts).
 *
 * With max_async_level = 0 everything but times must be equal to the bit; else everything that does not depend on which weights sampled.
 */
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { brokenBecause } from '../src/trainer/checkpoint.ts'

/** Sentences; none where the runs are the same. */
export function differences(want: string, have: string, { inTurns }: { inTurns: boolean }): string[] {
  return [
    ...sameRows(
      'metrics.jsonl',
      rowsOf(join(want, 'metrics.jsonl')),
      rowsOf(join(have, 'metrics.jsonl')),
      inTurns ? metricOf : countOf,
    ),
    ...sameRollouts(want, have, inTurns),
    ...sameCheckpoints(want, have, inTurns),
    ...timelineOf(have),
    ...leftovers(have),
  ]
}

type Row = Record<string, unknown>

export const textOf = (path: string) => (existsSync(path) ? readFileSync(path, 'utf8') : '')
export const namesIn = (folder: string) => (existsSync(folder) ? readdirSync(folder).toSorted() : [])
/** Every line must be whole: a line that is no JSON throws. */
const rowsOf = (path: string): Row[] => textOf(path).split('\n').filter(Boolean).map((line) => JSON.parse(line) as Row) // prettier-ignore
const pick = (row: Row, keep: (key: string) => boolean): Row =>
  Object.fromEntries(Object.entries(row).filter(([key]) => keep(key)))

/** Metrics without times and memory. */
const metricOf = (row: Row) => pick(row, (key) => !/^(time|time\/.*|perf\/.*)$/.test(key))
/** Metrics that do not depend on which weights sampled. */
const countOf = (row: Row) =>
  pick(row, (key) => ['step', 'progress/rollouts', 'progress/total_rollouts', 'optim/lr'].includes(key))
const rolloutOf = (row: Row) => pick(row, (key) => key !== 'timing')
const taskOf = (row: Row) =>
  pick(row, (key) => ['step', 'split', 'env', 'group', 'index', 'example_id', 'seed', 'prompt', 'answer'].includes(key))
const placeOf = (row: Row) => pick(row, (key) => ['step', 'split', 'group', 'index'].includes(key))

function sameRows(file: string, want: Row[], have: Row[], view: (row: Row) => Row): string[] {
  if (want.length !== have.length) return [`${file} has ${have.length} rows instead of ${want.length}`]
  return want.flatMap((row, i) => {
    const [a, b] = [view(row), view(have[i])]
    const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter(
      (key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]),
    )
    const [key] = keys
    return key === undefined
      ? []
      : [
          `${file}, row ${i} (step ${String(row.step)}): ${key} is ${JSON.stringify(b[key])} instead of ${JSON.stringify(a[key])} (${keys.length} keys differ)`,
        ]
  })
}

function sameRollouts(want: string, have: string, inTurns: boolean): string[] {
  const [a, b] = [want, have].map((folder) => namesIn(join(folder, 'rollouts')))
  if (a.join() !== b.join()) return [`rollouts/ holds ${b.join(', ')} instead of ${a.join(', ')}`]
  const all = a.filter((name) => !name.includes('.tokens.')).flatMap((name) => rowsOf(join(have, 'rollouts', name)))
  const places = all.map((row) => JSON.stringify(placeOf(row)))
  const twice = places.find((place, i) => places.indexOf(place) < i)
  const of = (name: string) =>
    name.includes('.tokens.') ? (inTurns ? (row: Row) => row : placeOf) : inTurns ? rolloutOf : taskOf
  return [
    ...(twice === undefined ? [] : [`a rollout is there twice: ${twice}`]),
    ...a.flatMap((name) =>
      sameRows(`rollouts/${name}`, rowsOf(join(want, 'rollouts', name)), rowsOf(join(have, 'rollouts', name)), of(name)),
    ),
  ]
}

function sameCheckpoints(want: string, have: string, inTurns: boolean): string[] {
  const [a, b] = [want, have].map((folder) => namesIn(join(folder, 'checkpoints')))
  // The best step depends on the numbers, and these on which weights sampled.
  if (!inTurns) return namesIn(join(have, 'checkpoints')).filter((name) => /^step_\d+$/.test(name)).flatMap((name) => brokenBecause(join(have, 'checkpoints', name)) ?? []) // prettier-ignore
  if (a.join() !== b.join()) return [`checkpoints/ holds ${b.join(', ')} instead of ${a.join(', ')}`]
  const [best, bestHere] = [want, have].map((folder) => bestOf(folder))
  if (best !== bestHere) return [`checkpoints/best is ${bestHere} instead of ${best}`]
  const steps = a.filter((name) => /^step_\d+$/.test(name))
  const broken = steps.flatMap((name) => brokenBecause(join(have, 'checkpoints', name)) ?? [])
  const different = steps.flatMap((step) =>
    namesIn(join(want, 'checkpoints', step)).flatMap((file) => {
      const [x, y] = [want, have].map((folder) => hashOf(join(folder, 'checkpoints', step, file)))
      return x === y ? [] : [`checkpoints/${step}/${file} has other bytes`]
    }),
  )
  return [...broken, ...different]
}

/** Each step has at most one line (a kill between its checkpoint and the next step loses it), in order. */
function timelineOf(folder: string): string[] {
  const steps = rowsOf(join(folder, 'logs/timeline.jsonl')).map((row) => Number(row.step))
  const wrong = steps.find((step, i) => i > 0 && step <= steps[i - 1])
  return wrong === undefined ? [] : [`logs/timeline.jsonl has step ${wrong} again, or too late: ${steps.join(', ')}`]
}

const bestOf = (folder: string) =>
  existsSync(join(folder, 'checkpoints/best')) ? readlinkSync(join(folder, 'checkpoints/best')) : 'not there'

const hashOf = (file: string) =>
  existsSync(file) && statSync(file).isFile() ? createHash('sha256').update(readFileSync(file)).digest('hex') : 'not there'

/** Files that only exist while a process runs. */
function leftovers(folder: string): string[] {
  const names = ['', 'logs', 'checkpoints', 'rollouts'].flatMap((sub) =>
    namesIn(join(folder, sub)).map((name) => join(sub, name)),
  )
  return names
    .filter((name) => /\.(tmp|stale)$|\.(partial|old)-|run\.lock|superseded/.test(name))
    .map((name) => `${name} was left`)
}
