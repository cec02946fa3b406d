/** Checks and notices on [trainer.ckpt]. */
import { nearest } from '../common/errors.ts'
import { METRICS, metricInfo } from '../monitor/metrics-table.ts'
import type { Check, Written } from './checks.ts'
import { show } from './problems.ts'
import type { RunConfig } from './schema.ts'
import type { SftConfig } from './sft-schema.ts'

const C = 'trainer.ckpt.'

/** keep_best must name a metric of the run. Otherwise there would be no best checkpoint at the end of a long run. */
export const ckptChecks: Check<RunConfig>[] = [
  {
    keys: [`${C}keep_best`, 'env', 'trainer.args.eval_strategy', 'trainer.args.eval_rollouts_per_example'],
    find({ trainer: { args, ckpt }, env }) {
      const metric = ckpt.keep_best?.replace(/^-/, '')
      if (metric === undefined) return undefined
      const report = (text: string) => ({ key: `${C}keep_best`, text: `${C}keep_best is ${show(ckpt.keep_best)}${text}` })
      const unknown = unknownMetric(metric, report)
      if (unknown !== undefined || !metric.startsWith('eval/')) return unknown
      if (args.eval_strategy === 'no') return report(', but nothing is evaluated: set trainer.args.eval_strategy = "steps".')
      const here = env.map((one) => one.name)
      const asks = args.eval_rollouts_per_example
      const [, kind, k] = /\/(avg|pass)@(\w+)$/.exec(metric) ?? []
      // pass@k is measured for k = 1, 2, 4 ... up to the number of rollouts of an example.
      const isMeasured = kind === 'pass' ? Number.isInteger(Math.log2(Number(k))) && Number(k) <= asks : Number(k) === asks
      if (here.some((one) => metric.startsWith(`eval/${one}/`)) && (kind === undefined || isMeasured)) return undefined
      const keys = here.map((one) => show(`eval/${one}/avg@${asks}`)).join(' or ')
      return report(`, but this run measures ${keys} (k is eval_rollouts_per_example; for pass@k, any power of two up to that).`)
    },
  },
]

/** The same check for `sft`, which has no evaluations of environments. */
export const sftCkptChecks: Check<SftConfig>[] = [
  {
    keys: [`${C}keep_best`],
    find({ trainer: { ckpt } }) {
      const metric = ckpt.keep_best?.replace(/^-/, '')
      if (metric === undefined || ['loss/mean', 'entropy/all/mean', 'optim/grad_norm'].includes(metric)) return undefined
      return `${C}keep_best is ${show(ckpt.keep_best)}; a supervised run measures "-loss/mean", "-entropy/all/mean" and "-optim/grad_norm".`
    },
  },
]

function unknownMetric<Found>(metric: string, report: (text: string) => Found): Found | undefined {
  if (metricInfo(metric)) return undefined
  const near = nearest(
    metric,
    Object.keys(METRICS).filter((key) => !key.includes('<')),
  )
  return report(
    `, which is not a metric.${near === undefined ? '' : ` Did you mean ${show(near)}?`} docs/metrics.md lists all metrics.`,
  )
}

/** One line for each key of [trainer.ckpt] that has no effect. */
export function ckptNotices({ trainer: { args, ckpt } }: RunConfig | SftConfig, written: Written): string[] {
  const { interval, keep_interval: every } = ckpt
  if (!written.isSet(`${C}keep_interval`) || every === undefined) return []
  if (interval === 0) return [`${C}keep_interval has no effect: interval is 0, so there is one checkpoint, at the end.`]
  const first = leastCommonMultiple(interval, every)
  if (first > args.max_steps)
    return [`${C}keep_interval has no effect: no step that is saved (every ${interval}, up to max_steps) is a multiple of it.`]
  return first === every
    ? []
    : [
        `${C}keep_interval is ${every} and interval ${interval}: the steps that are multiples of both are kept: ${first}, ${2 * first}, ...`,
      ]
}

/** Least common multiple of two positive integers. */
export function leastCommonMultiple(a: number, b: number): number {
  let [x, y] = [a, b]
  while (y > 0) [x, y] = [y, x % y]
  return (a / x) * b
}
