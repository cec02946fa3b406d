/** Drawing tokens from logits: penalties, filters, and a seeded draw, on the GPU. */
import { fileURLToPath } from 'node:url'
import type { SamplingParams } from '../../common/types.ts'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { lanes } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { penalties: file('penalties.wgsl'), draw: file('draw.wgsl') }

/** What a row's draw is made with: the part of a request's sampling parameters that kernels read. */
export type DrawSettings = Pick<
  SamplingParams,
  'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repetition_penalty' | 'presence_penalty' | 'frequency_penalty'
>

/** Numbers of a row's settings: two vec4f. */
export const settingsPerRow = 8

/**
 * The settings of rows as the kernels read them.
 * @param length rows in all; those behind the given ones are marked as not in use
 */
export function packSettings(rows: DrawSettings[], length = rows.length): Float32Array {
  const packed = new Float32Array(length * settingsPerRow)
  rows.forEach((s, r) => {
    const penalties = [s.frequency_penalty, s.presence_penalty]
    const inUse = 1
    const all = [s.temperature, s.top_p, s.min_p, s.repetition_penalty, ...penalties, Math.max(0, s.top_k), inUse]
    packed.set(all, r * settingsPerRow)
  })
  return packed
}

/** Applies penalties in place on logits (rows, vocabulary); see penalties.wgsl for the lists. */
export function applyPenalties(
  gpu: Gpu,
  t: { logits: Binding; settings: Binding; start: Binding; tokens: Binding; counts: Binding },
  rows: number,
  vocabulary: number,
): void {
  gpu.dispatch(gpu.kernel(paths.penalties), [t.logits, t.settings, t.start, t.tokens, t.counts], { rows, vocabulary }, [rows])
}

/** drawn[r] = a token for row r (0 for rows that are not in use); seeds (rows) vec2u: seed and position. */
export function drawTokens(
  gpu: Gpu,
  t: { logits: Binding; settings: Binding; seeds: Binding; drawn: Binding },
  rows: number,
  vocabulary: number,
): void {
  const kernel = gpu.kernel(paths.draw, { ...lanes(gpu, true), MASK: 0 })
  gpu.dispatch(kernel, [t.logits, t.settings, t.seeds, t.drawn], { rows, vocabulary }, [rows])
}

/** Leaves in `logits` what `drawTokens` would draw from: logits / temperature, and -3e38 for dropped tokens. */
export function maskLogits(
  gpu: Gpu,
  t: { logits: Binding; settings: Binding; seeds: Binding; drawn: Binding },
  rows: number,
  vocabulary: number,
): void {
  const kernel = gpu.kernel(paths.draw, { ...lanes(gpu, true), MASK: 1 })
  gpu.dispatch(kernel, [t.logits, t.settings, t.seeds, t.drawn], { rows, vocabulary }, [rows])
}
