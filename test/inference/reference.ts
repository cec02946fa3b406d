/** What a token is drawn from, in plain float64 on the model's logits, and what the engine's results must say of it. */
import { expect } from 'vitest'
import { rmsNorm } from '../../src/autograd/ops/norm.ts'
import { Tape } from '../../src/autograd/tape.ts'
import type { Tensor } from '../../src/autograd/tensor.ts'
import type { GenerationRequest, GenerationResult } from '../../src/common/types.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { decoderHidden, type Decoder } from '../../src/model/decoder/decoder.ts'

/** Hidden states of one sequence before the last norm, as the trainer computes them. */
export async function hiddenOf(decoder: Decoder, ids: readonly number[]): Promise<Tensor> {
  const { gpu } = decoder
  const rows = ids.length
  const tokens = gpu.upload(Uint32Array.from(ids), 'ids')
  const info = gpu.upload(Uint32Array.from(ids.flatMap((_, i) => [0, 0, 0, i])), 'info')
  const hidden = decoderHidden(new Tape(gpu, false), decoder, { rows, ids: tokens, info, positions: rows })
  await gpu.read(hidden.buffer)
  for (const buffer of [tokens, info]) buffer.release()
  return hidden
}

/** The logits after each token. */
export async function logitsOf(decoder: Decoder, ids: readonly number[]): Promise<Float32Array[]> {
  const { gpu, head, norm, config } = decoder
  const [rows, vocabulary] = [ids.length, head.weight.rows]
  const tape = new Tape(gpu, false)
  const hidden = await hiddenOf(decoder, ids)
  const normed = rmsNorm(tape, hidden, norm)
  const logits = gpu.pool.acquire(rows * vocabulary * 4, 'logits')
  linear(gpu, normed.buffer, rows, head.weight, logits)
  const data = new Float32Array(await gpu.read({ buffer: logits, offset: 0, bytes: rows * vocabulary * 4 }))
  logits.release()
  normed.buffer.release()
  hidden.buffer.release()
  const scaled = data.map((z) => z / (config.logitsScaling ?? 1))
  return Array.from({ length: rows }, (_, r) => scaled.subarray(r * vocabulary, (r + 1) * vocabulary))
}

export function logSoftmax(z: ArrayLike<number>): number[] {
  const values = Array.from(z)
  const high = Math.max(...values)
  const total = Math.log(values.reduce((sum, x) => sum + Math.exp(x - high), 0))
  return values.map((x) => x - high - total)
}

/** Ids by falling value, of equals the smaller id first. */
export const ranked = (z: ArrayLike<number>): number[] => Array.from(z, (_, v) => v).toSorted((a, b) => z[b] - z[a] || a - b)

function pcg(v: number): number {
  const s = (Math.imul(v, 747796405) + 2891336453) >>> 0
  const w = Math.imul((s >>> ((s >>> 28) + 4)) ^ s, 277803737) >>> 0
  return ((w >>> 22) ^ w) >>> 0
}

/** The noise of hash.wgsl. */
function gumbel(seed: number, position: number, token: number): number {
  const h = pcg((pcg((pcg(seed) ^ position) >>> 0) ^ token) >>> 0)
  return -Math.log(-Math.log1p(-((h >>> 9) + 0.5) / 8388608))
}

/** Logits after mask, biases, penalties, temperature, min_p, top_k and top_p: -Infinity for what can not be drawn. */
export function processed(
  logits: ArrayLike<number>,
  request: GenerationRequest,
  before: readonly number[],
  eos: number[],
): number[] {
  const { sampling: s, promptIds, constraint } = request
  const z = Array.from(logits)
  const vocabulary = z.length
  const allowed = z.map(() => true)
  if (s.allowed_token_ids) allowed.forEach((_, v) => (allowed[v] = s.allowed_token_ids!.includes(v)))
  // The constraints of these tests allow even ids alone.
  if (constraint) allowed.forEach((a, v) => (allowed[v] = a && v % 2 === 0))
  if (before.length < (s.min_tokens ?? 0)) for (const id of [...eos, ...s.stop_token_ids]) allowed[id] = false
  for (const [id, bias] of Object.entries(s.logit_bias ?? {})) z[Number(id)] += bias
  for (const id of new Set([...promptIds, ...before])) {
    z[id] = z[id] > 0 ? z[id] / s.repetition_penalty : z[id] * s.repetition_penalty
    const count = before.filter((t) => t === id).length
    z[id] -= s.frequency_penalty * count + (count > 0 ? s.presence_penalty : 0)
  }
  const masked = z.map((x, v) => (allowed[v] ? x : -Infinity))
  if (s.temperature === 0) return masked
  let hot = masked.map((x) => x / s.temperature)
  const high = Math.max(...hot)
  hot = hot.map((x) => (x >= high + Math.log(s.min_p) ? x : -Infinity))
  if (s.top_k > 0 && s.top_k < vocabulary) {
    const least = hot.toSorted((a, b) => b - a)[s.top_k - 1]
    hot = hot.map((x) => (x >= least ? x : -Infinity))
  }
  if (s.top_p < 1) {
    const p = logSoftmax(hot).map(Math.exp)
    let above = 0
    const kept = new Set<number>()
    for (const id of ranked(hot)) {
      if (above < s.top_p) kept.add(id)
      above += p[id]
    }
    hot = hot.map((x, v) => (kept.has(v) ? x : -Infinity))
  }
  return hot
}

/** Expects each token of a result to be the one that the reference draws, with the log-probability that the request asks for, and its neighbours. */
export async function expectChoice(
  decoder: Decoder,
  request: GenerationRequest,
  result: GenerationResult,
  { eos, name }: { eos: number[]; name: string },
): Promise<void> {
  const { sampling: s, promptIds, logprobs: { mode = 'policy', top } = {} } = request
  const logits = await logitsOf(decoder, [...promptIds, ...result.ids])
  expect(result.top?.length, name).toBe(top === undefined ? undefined : result.ids.length)
  result.ids.forEach((id, i) => {
    const at = `${name}, token ${i}`
    const row = logits[promptIds.length - 1 + i]
    const z = processed(row, request, result.ids.slice(0, i), eos)
    const noisy = z.map((x, v) => (s.temperature > 0 ? x + gumbel(s.seed, i, v) : x))
    // The reference's own choice, or one that float32 can not tell from it.
    expect(noisy[id], at).toBeGreaterThan(Math.max(...noisy) - 1e-4)
    const temperature = mode === 'policy' ? s.temperature || 1 : 1
    const told = logSoftmax(mode === 'processed' ? z : row.map((x) => x / temperature))
    expect(Math.abs(result.logprobs[i] - told[id]), at).toBeLessThan(3e-5)
    if (top === undefined) return
    const { ids, logprobs, rank } = result.top![i]
    const possible = ranked(told).filter((v) => told[v] > -Infinity)
    expect(ids, at).toEqual(possible.slice(0, top))
    ids.forEach((v, k) => expect(Math.abs(logprobs[k] - told[v]), at).toBeLessThan(3e-5))
    expect(rank, at).toBe(1 + told.filter((l) => l > told[id]).length)
    if (ids.includes(id)) expect(logprobs[ids.indexOf(id)], at).toBe(result.logprobs[i])
    // All that can be drawn is there: together it is certain.
    if (mode === 'processed' && possible.length <= top)
      expect(
        logprobs.reduce((sum, l) => sum + Math.exp(l), 0),
        at,
      ).toBeCloseTo(1, 5)
  })
}
