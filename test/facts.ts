/** Simulates other kinds of adapters on this one. */
import type { GpuFacts } from '../src/gpu/adapter.ts'
import type { Gpu } from '../src/gpu/gpu.ts'

/** Runs `fn` with the facts of another adapter, so that its kernels are chosen. */
export async function withFacts(gpu: Gpu, facts: Partial<GpuFacts>, fn: () => Promise<void>): Promise<void> {
  const own = gpu.facts
  Object.assign(gpu, { facts: { ...own, ...facts } })
  try {
    await fn()
  } finally {
    Object.assign(gpu, { facts: own })
  }
}
