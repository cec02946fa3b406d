/** A benchmark case, one kernel at one size: what it needs, how it is checked, and what it counts. */
import type { Gpu } from '../gpu/gpu.ts'
import { peakOf, type Peaks } from './peaks.ts'
import { bestSeconds, timeCalls, type TimingOptions } from './timing.ts'

/** Groups of kernel benchmarks. */
export const kernelGroups = ['matmul', 'attention', 'norm', 'head', 'optimizer', 'sampler'] as const
export type KernelGroup = (typeof kernelGroups)[number]

export interface KernelCase {
  group: KernelGroup
  /** What is computed: 'forward', 'dW'. */
  name: string
  /** Sizes: '512 x 1536 x 576'. */
  shape: string
  /** The model whose sizes these are. */
  of: string
  /** Multiplications and additions that the result of a call needs, whatever the kernel recomputes. */
  flops: number
  /** Bytes that a call must read and write at least. */
  bytes: number
  /** Largest binding in bytes. The case is skipped if the adapter binds less. */
  binding: number
  /** Set if the product runs on matrix units: its share is then that of their peak. */
  units?: boolean
  open(gpu: Gpu): OpenCase
}

/** A case with its buffers allocated. */
export interface OpenCase {
  /** Records one call. */
  run(): void
  /** Compares the result of `run` with float64. @returns the largest relative error @throws CheckError */
  check(): Promise<number>
  release(): void
}

export interface KernelRow {
  group: KernelGroup
  name: string
  shape: string
  of: string
  /** Milliseconds per call by the clock. */
  ms: number
  /** Rates by the better of the two times (timing.ts); 0 if the case does not count that. */
  gflops: number
  gbs: number
  /** Shares of the adapter's measured peaks. */
  ofPeak: number
  ofCopy: number
  /** Largest relative error of the check. */
  error: number
  units?: boolean
  /** How many times as fast it is as a plain kernel with one output per invocation. */
  timesPlain?: number
}

/** The words that name a case, in errors and progress. */
export const caseName = ({
  group,
  name,
  shape,
  of,
  units,
}: Pick<KernelCase, 'group' | 'name' | 'shape' | 'of' | 'units'>): string =>
  `${group} ${name} ${shape} (${of}${units ? ', matrix units' : ''})`

/** Why a case cannot run on this adapter, or undefined. */
export function whyNot(gpu: Gpu, { binding }: KernelCase): string | undefined {
  const { maxBinding } = gpu.facts.limits
  if (binding <= maxBinding) return undefined
  return `it binds ${Math.ceil(binding / 2 ** 20)} MiB at a time and this adapter at most ${Math.floor(maxBinding / 2 ** 20)}`
}

/** Checks a case, then times it. @throws CheckError naming the case if its result is wrong */
export async function runCase(gpu: Gpu, one: KernelCase, peaks: Peaks, options: TimingOptions): Promise<KernelRow> {
  const open = one.open(gpu)
  try {
    open.run()
    const error = await open.check()
    const timing = await timeCalls(gpu, caseName(one), () => open.run(), options)
    const seconds = bestSeconds(timing)
    const [gflops, gbs] = [one.flops / seconds / 1e9, one.bytes / seconds / 1e9]
    const peak = one.units && peaks.units ? peaks.units : peaks.fma
    const { group, name, shape, of } = one
    const shares = { ofPeak: gflops / peakOf(peak), ofCopy: gbs / peakOf(peaks.copy) }
    return {
      group,
      name,
      shape,
      of,
      ms: timing.clock * 1000,
      gflops,
      gbs,
      ...shares,
      error,
      ...(one.units ? { units: true } : {}),
    }
  } finally {
    open.release()
    gpu.pool.trim()
  }
}
