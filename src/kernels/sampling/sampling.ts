/** Drawing tokens from logits: penalties, filters, and a seeded draw, on the GPU. */
import { fileURLToPath } from 'node:url'
import type { SamplingParams } from '../../common/types.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { lanes } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { penalties: file('penalties.wgsl'), draw: file('draw.wgsl') }

/** What a row's draw is made with: the part of a request's sampling parameters that kernels read. */
export type DrawSettings = Pick<
  SamplingParams,
  'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repetition_penalty' | 'presence_penalty' | 'frequency_penalty'
>

/** The settings of rows as the kernels read them: two vec4f a row. */
export function packSettings(rows: DrawSettings[]): Float32Array {
  const packed = new Float32Array(rows.length * 8)
  rows.forEach((s, r) => {
    packed.set(
      [s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.frequency_penalty, s.presence_penalty, Math.max(0, s.top_k)],
      r * 8,
    )
  })
  return packed
}

/** Applies penalties in place on logits (rows, vocabulary); see penalties.wgsl for the lists. */
export function applyPenalties(
  gpu: Gpu,
  t: { logits: GpuBuffer; settings: GpuBuffer; start: GpuBuffer; tokens: GpuBuffer; counts: GpuBuffer },
  rows: number,
  vocabulary: number,
): void {
  gpu.dispatch(gpu.kernel(paths.penalties), [t.logits, t.settings, t.start, t.tokens, t.counts], { rows, vocabulary }, [rows])
}

/** drawn[r] = a token for row r; seeds (rows) vec2u: seed and position. */
export function drawTokens(
  gpu: Gpu,
  t: { logits: GpuBuffer; settings: GpuBuffer; seeds: GpuBuffer; drawn: GpuBuffer },
  rows: number,
  vocabulary: number,
): void {
  const kernel = gpu.kernel(paths.draw, { ...lanes(gpu, true), MASK: 0 })
  gpu.dispatch(kernel, [t.logits, t.settings, t.seeds, t.drawn], { rows, vocabulary }, [rows])
}

/** Leaves in `logits` what `drawTokens` would draw from: logits / temperature, and -3e38 for dropped tokens. */
export function maskLogits(
  gpu: Gpu,
  t: { logits: GpuBuffer; settings: GpuBuffer; seeds: GpuBuffer; drawn: GpuBuffer },
  rows: number,
  vocabulary: number,
): void {
  const kernel = gpu.kernel(paths.draw, { ...lanes(gpu, true), MASK: 1 })
  gpu.dispatch(kernel, [t.logits, t.settings, t.seeds, t.drawn], { rows, vocabulary }, [rows])
}
