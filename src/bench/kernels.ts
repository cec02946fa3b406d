/** Which kernels are measured at which sizes, and the loop over them. */
import type { Gpu } from '../gpu/gpu.ts'
import type { ModelConfig } from '../model/types.ts'
import { attentionCase, attentionTakesUnits } from './attention.ts'
import { caseName, runCase, whyNot, type KernelCase, type KernelGroup, type KernelRow } from './case.ts'
import { headCase, headForms } from './head.ts'
import { hasUnits, linearShapesOf, matmulCase, plainRate, type MatmulForm } from './matmul.ts'
import { normCase, normForms } from './norm.ts'
import { optimizerCase, optimizerForms } from './optimizer.ts'
import type { Peaks } from './peaks.ts'
import { samplerCase, samplerForms } from './sampler.ts'
import type { TimingOptions } from './timing.ts'

/** A model's sizes, and a name for them. */
export interface NamedShape {
  name: string
  config: ModelConfig
}

interface KernelPlan {
  /**
   * All sizes of the first model are measured. On a software adapter, of the others only the few that show whether larger matrices perform
   * differently.
   */
  models: NamedShape[]
  /** Rows of products, from which other groups derive theirs. */
  rows?: number[]
  /** Only a few small sizes, for a trial. */
  quick?: boolean
}

const MIB = 2 ** 20

/** The cases of a group. */
export function casesOf(gpu: Gpu, group: KernelGroup, plan: KernelPlan): KernelCase[] {
  return plan.models.flatMap(({ name, config }, index) => {
    const brief = index > 0 && gpu.facts.software
    const builders: Record<KernelGroup, () => KernelCase[]> = {
      matmul: () => matmulCases(gpu, name, config, plan, brief),
      attention: () => attentionCases(gpu, name, config, plan, brief),
      norm: () => normCases(gpu, name, config, plan, brief),
      head: () => headCases(gpu, name, config, plan, brief),
      optimizer: () => (index > 0 ? [] : optimizerCases(gpu, plan)),
      sampler: () => samplerCases(gpu, name, config, plan, brief),
    }
    return builders[group]()
  })
}

function matmulCases(gpu: Gpu, name: string, config: ModelConfig, plan: KernelPlan, brief: boolean): KernelCase[] {
  const rows = plan.rows ?? (plan.quick ? [1, 16] : brief ? [16, 512] : [1, 16, 64, 512, 2048])
  const forms: MatmulForm[] = ['nt', 'nn', 'tn']
  const shapes = linearShapesOf(name, config)
  return (plan.quick ? shapes.slice(0, 1) : shapes).flatMap((shape) =>
    forms.flatMap((form) =>
      rows.flatMap((m) => {
        const units = form !== 'tn' && hasUnits(gpu, shape.k) ? [matmulCase(form, m, shape, true)] : []
        return [matmulCase(form, m, shape), ...units]
      }),
    ),
  )
}

function attentionCases(gpu: Gpu, of: string, shape: ModelConfig, plan: KernelPlan, brief: boolean): KernelCase[] {
  const { software } = gpu.facts
  const lengths = plan.quick ? [128] : brief ? [512] : software ? [512, 2048] : [512, 2048, 8192]
  const decode = plan.quick ? [[2, 256]] : brief ? [[1, 16384]] : [[1, 1024], [1, 16384], [8, 16384], [32, 1024], [128, 256]] // prettier-ignore
  return [
    ...lengths.flatMap((length) => [
      attentionCase('forward', length, shape, of),
      attentionCase('backward', length, shape, of),
      ...(attentionTakesUnits(gpu, shape) ? [attentionCase('backward', length, shape, of, { units: true })] : []),
    ]),
    ...decode.map(([sequences, keys]) => attentionCase('decode', keys, shape, of, { sequences })),
  ]
}

function normCases(gpu: Gpu, of: string, config: ModelConfig, plan: KernelPlan, brief: boolean): KernelCase[] {
  const rows = plan.rows ?? (plan.quick ? [16] : brief ? [512] : gpu.facts.software ? [32, 2048] : [32, 2048, 16384])
  return normForms.flatMap((form) =>
    rows.map((r) => normCase(form, r, form === 'SiLU gate' ? config.intermediateSize : config.hiddenSize, of)),
  )
}

function headCases(gpu: Gpu, of: string, config: ModelConfig, plan: KernelPlan, brief: boolean): KernelCase[] {
  const rows = plan.rows ?? (plan.quick ? [4] : brief ? [16] : gpu.facts.software ? [1, 32, 512] : [1, 32, 512, 2048])
  const vocabulary = plan.quick ? Math.min(config.vocabSize, 5000) : config.vocabSize
  return headForms.flatMap((form) => rows.map((r) => headCase(form, r, vocabulary, config.hiddenSize, of)))
}

function samplerCases(gpu: Gpu, of: string, config: ModelConfig, plan: KernelPlan, brief: boolean): KernelCase[] {
  const rows = plan.rows ?? (plan.quick ? [8] : brief ? [32] : gpu.facts.software ? [1, 32] : [1, 32, 128])
  const vocabulary = plan.quick ? Math.min(config.vocabSize, 5000) : config.vocabSize
  return samplerForms.flatMap((form) => rows.map((r) => samplerCase(form, r, vocabulary, of)))
}

/** One small optimizer step (an adapter), and one as large as is bound at a time. */
function optimizerCases(gpu: Gpu, plan: KernelPlan): KernelCase[] {
  const most = Math.min(gpu.facts.limits.maxBinding, 512 * MIB) / 4
  const counts = plan.quick ? [2 ** 16] : [2.5 * MIB, Math.floor(most / MIB) * MIB]
  return optimizerForms.flatMap((form) =>
    counts.map((count) => optimizerCase(form, count, `${(count / 1e6).toFixed(1)} M parameters`)),
  )
}

/** A case that was skipped, and the reason. */
export interface Skipped {
  case: string
  why: string
}

interface KernelReport {
  rows: KernelRow[]
  skipped: Skipped[]
}

/**
 * Checks and times the cases of some groups.
 * @param progress called with each case before it runs @throws CheckError naming the first case whose result is wrong
 */
export async function benchKernels(
  gpu: Gpu,
  groups: readonly KernelGroup[],
  plan: KernelPlan,
  peaks: Peaks,
  options: TimingOptions & { progress?: (line: string) => void; row?: (row: KernelRow) => void },
): Promise<KernelReport> {
  const report: KernelReport = { rows: [], skipped: [] }
  const cases = groups.flatMap((group) => casesOf(gpu, group, plan))
  const plainRates = new Map<string, number>()
  for (const [i, one] of cases.entries()) {
    options.progress?.(`${i + 1}/${cases.length} ${caseName(one)}`)
    const why = whyNot(gpu, one)
    if (why) {
      report.skipped.push({ case: caseName(one), why })
      continue
    }
    const row = await runCase(gpu, one, peaks, options)
    if (one.group === 'matmul' && one.of.startsWith(`${plan.models[0].name} `)) {
      const [, n, k] = one.shape.split(' x ').map(Number)
      const key = `${n}x${k}`
      if (!plainRates.has(key)) plainRates.set(key, await plainRate(gpu, { n, k, of: one.of }, options.repeats))
      row.timesPlain = row.gflops / plainRates.get(key)!
    }
    report.rows.push(row)
    options.row?.(row)
  }
  return report
}
