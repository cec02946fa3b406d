/** Benchmarks of drawing tokens: greedy, from the whole distribution, and with top_k and top_p. */
import type { Gpu } from '../gpu/gpu.ts'
import { drawTokens, packSettings } from '../kernels/sampling/sampling.ts'
import { CheckError } from './check.ts'
import type { KernelCase, OpenCase } from './case.ts'
import { plainSampling, poisoned, randomFloats } from './data.ts'

const settings = {
  greedy: { ...plainSampling, temperature: 0 },
  draw: plainSampling,
  'top_k 50': { ...plainSampling, top_k: 50 },
  'top_p 0.95': { ...plainSampling, top_p: 0.95 },
}
type SamplerForm = keyof typeof settings
export const samplerForms = Object.keys(settings) as SamplerForm[]

export function samplerCase(form: SamplerForm, rows: number, vocabulary: number, of: string): KernelCase {
  const shape = `${rows} x ${vocabulary}`
  const bytes = 4 * rows * vocabulary
  const name = `sampler ${form} ${shape} (${of})`
  return {
    group: 'sampler',
    name: form,
    shape,
    of,
    flops: 0,
    bytes,
    binding: bytes,
    open: (gpu) => open(gpu, name, form, rows, vocabulary),
  }
}

function open(gpu: Gpu, name: string, form: SamplerForm, rows: number, vocabulary: number): OpenCase {
  const host = randomFloats(rows * vocabulary, 'logits', 2)
  const logits = gpu.upload(host, 'logits')
  const packed = gpu.upload(packSettings(Array.from({ length: rows }, () => settings[form])), 'settings')
  const seeds = gpu.upload(
    Uint32Array.from({ length: 2 * rows }, (_, i) => (i % 2 === 0 ? 5 : i)),
    'seeds',
  )
  const drawn = poisoned(gpu, rows, 'drawn')
  return {
    run: () => drawTokens(gpu, { logits, settings: packed, seeds, drawn }, rows, vocabulary),
    async check() {
      const tokens = new Uint32Array(await gpu.read({ buffer: drawn, offset: 0, bytes: rows * 4 }))
      const ranks: number[] = []
      tokens.forEach((token, row) => {
        const wrong = checkToken(form, host.subarray(row * vocabulary, (row + 1) * vocabulary), token)
        if (wrong) throw new CheckError(`${name}: token ${token} of row ${row} ${wrong}, so it is not timed.`)
        ranks.push(token)
      })
      // If all rows drew the same token, each would pass by itself.
      if (form !== 'greedy' && rows >= 8 && new Set(ranks).size === 1)
        throw new CheckError(`${name}: all rows draw token ${tokens[0]}.`)
      return 0
    },
    release: () => [logits, packed, seeds, drawn].forEach((buffer) => buffer.release()),
  }
}

/** Checks a drawn token in float64: it must be the largest, or among those that the filter keeps. @returns what is wrong */
function checkToken(form: SamplerForm, logits: Float32Array, token: number): string | undefined {
  if (token >= logits.length) return `is none of ${logits.length}`
  const above = logits.reduce((count, z) => count + Number(z > logits[token]), 0)
  if (form === 'greedy') return above > 0 ? 'is not the largest' : undefined
  if (form === 'top_k 50') return above >= 50 ? `has ${above} larger ones` : undefined
  const { temperature } = settings[form]
  const high = logits.reduce((a, b) => Math.max(a, b), -Infinity)
  const weight = (z: number): number => Math.exp((z - high) / temperature)
  const total = logits.reduce((sum, z) => sum + weight(z), 0)
  const before = logits.reduce((sum, z) => sum + (z > logits[token] ? weight(z) : 0), 0)
  if (form === 'top_p 0.95') return before / total > 0.95001 ? `lies behind ${before / total} of the probability` : undefined
  // A token in the last millionth of the probability: a fair draw takes one once in a million draws.
  return before / total > 1 - 1e-6 ? 'is next to impossible' : undefined
}
