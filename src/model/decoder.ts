/**
 * The decoder-only transformer of Llama, Mistral, SmolLM3, Qwen2, Qwen3 and Gemma 3: pre-norm blocks of attention and a gated MLP (transformers' modeling_llama.py and its
 * kin). One forward pass serves training, scoring, prefill and decode: rows are tokens of any sequences, and `layout` says which keys
 * each row sees, so all of them sum in the same order.
 */
import { attention, rope, type PagedCache, type RowLayout } from '../autograd/ops/attention.ts'
import type { Head } from '../autograd/ops/head.ts'
import type { Projection } from '../autograd/ops/linear.ts'
import {
  linears,
  linearsIntoCache,
  linearsTurned,
  normIntoCache,
  swiGlu,
  type LinearsArguments,
  type RowAdapters,
} from '../autograd/ops/linears.ts'
import { rmsNormAdded, rmsNormTurned, type Norm } from '../autograd/ops/norm.ts'
import { embedding, type Embedding, type TokenLists } from '../autograd/ops/rows.ts'
import type { ParameterStore } from '../autograd/parameters.ts'
import { checkpoint, type Tape } from '../autograd/tape.ts'
import { Tensor } from '../autograd/tensor.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import type { Count } from '../gpu/size.ts'
import type { HeadShape } from '../kernels/attention/attention.ts'
import { inverseFrequencies, rotaryTable } from './rope.ts'
import type { ModelConfig } from './types.ts'

export interface DecoderLayer {
  inputNorm: Norm
  q: Projection
  k: Projection
  v: Projection
  o: Projection
  /** Over each head, Qwen3 and Gemma 3. */
  qNorm?: Norm
  kNorm?: Norm
  /** Over what o gives, before the residual is added: Gemma 3. */
  oNorm?: Norm
  /** Of the MLP's input. */
  postNorm: Norm
  gate: Projection
  up: Projection
  down: Projection
  /** Likewise over what down gives. */
  downNorm?: Norm
}

/** A layer's projections, together those of one input. */
export function projectionsOf({ q, k, v, o, gate, up, down }: DecoderLayer): Projection[][] {
  return [[q, k, v], [o], [gate, up], [down]]
}

/** A layer's norms. */
export function normsOf({ inputNorm, qNorm, kNorm, oNorm, postNorm, downNorm }: DecoderLayer): Norm[] {
  return [inputNorm, postNorm, qNorm, kNorm, oNorm, downNorm].filter((norm) => norm !== undefined)
}

/** A model on the GPU. The trainer and the engine hold the same one: there is one copy of the weights. */
export interface Decoder {
  gpu: Gpu
  name: string
  config: ModelConfig
  embedding: Embedding
  layers: DecoderLayer[]
  norm: Norm
  head: Head
  /** What is trained: an adapter's matrices, or every weight; absent for a model that is only run. */
  store?: ParameterStore
  rotary: RotaryCache
  release(): void
}

/** The rotary table of a model, made longer when longer sequences come. */
export class RotaryCache {
  readonly #gpu: Gpu
  readonly #inverse: Float32Array
  /** Layers with a table of their own, and what that is made of. */
  readonly #others: readonly number[]
  readonly #otherInverse: Float32Array
  #table: GpuBuffer | undefined
  #other: GpuBuffer | undefined
  #positions = 0
  constructor(gpu: Gpu, config: ModelConfig) {
    this.#gpu = gpu
    this.#inverse = inverseFrequencies(config)
    const { gemma, layersWithoutRope = [] } = config
    this.#others = gemma?.slidingLayers ?? layersWithoutRope
    // Where nothing turns all angles are 0: x cos - y sin is x, to the bit.
    this.#otherInverse = gemma
      ? inverseFrequencies({ ...config, ropeTheta: gemma.localRopeTheta, ropeScaling: { type: 'default' } })
      : new Float32Array(this.#inverse.length)
  }
  /** A table that covers positions 0 .. positions - 1: that of a layer, or the one of most families' layers. */
  table(positions: number, layer?: number): GpuBuffer {
    if (!this.#table || positions > this.#positions) {
      this.#positions = Math.max(256, 2 ** Math.ceil(Math.log2(positions)))
      this.release()
      this.#table = this.#gpu.upload(rotaryTable(this.#inverse, this.#positions), 'rotary table')
      if (this.#others.length > 0)
        this.#other = this.#gpu.upload(rotaryTable(this.#otherInverse, this.#positions), 'rotary table of other layers')
    }
    return layer !== undefined && this.#others.includes(layer) ? this.#other! : this.#table
  }
  release(): void {
    this.#table?.release()
    this.#other?.release()
    this.#table = this.#other = undefined
  }
}

/** Rows as the decoder takes them, on the GPU. */
export interface RowBatch extends RowLayout {
  rows: Count
  /** (rows) u32. */
  ids: GpuBuffer
  /** Positions of all rows lie below it. */
  positions: number
  /** Needed where the embedding is trained. */
  tokenLists?: TokenLists
  /** Seed of LoRA's dropout; none without it. */
  dropoutSeed?: Count
  /** Rows of different adapters, in place of the decoder's own; only on a tape that keeps nothing. */
  adapters?: RowAdapters
}

/** Keys and values of one layer that outlive a pass: (cache rows, kv heads * D) each, float32 or f16. */
export interface LayerCache {
  k: GpuBuffer
  v: GpuBuffer
}

/** Where a pass puts its keys and values, and finds those of earlier passes: row i goes to cache row slots[i].x; `layout` and `paged` name cache rows. */
export interface CacheArguments {
  layers: LayerCache[]
  /** (rows) vec2u: cache row and position. */
  slots: GpuBuffer
  rows: number
  /** Without it `layout` names the cache's rows themselves, which are float32. */
  paged?: PagedCache
}

/**
 * Hidden states after the last layer, before the last norm: (rows, hidden).
 * @param options.checkpointing keeps only each layer's input for the backward pass and computes the layer again
 */
export function decoderHidden(
  tape: Tape,
  decoder: Decoder,
  batch: RowBatch,
  options: { cache?: CacheArguments; checkpointing?: boolean } = {},
): Tensor {
  let hidden = embedding(tape, batch.ids, batch.rows, decoder.embedding, batch.tokenLists)
  decoder.layers.forEach((_, i) => {
    const table = decoder.rotary.table(batch.positions, i)
    const run = (t: Tape, x: Tensor) =>
      decoderLayer(t, decoder, i, x, batch, table, options.cache && { ...options.cache, index: i })
    const next = options.checkpointing ? checkpoint(tape, hidden, run) : run(tape, hidden)
    tape.done(hidden)
    hidden = next
    if (!options.cache) tape.cut()
  })
  return hidden
}

function decoderLayer(
  tape: Tape,
  decoder: Decoder,
  index: number,
  x: Tensor,
  batch: RowBatch,
  table: GpuBuffer,
  cache: (CacheArguments & { index: number }) | undefined,
): Tensor {
  const layer = decoder.layers[index]
  const { gemma } = decoder.config
  const how = { dropoutSeed: batch.dropoutSeed, adapters: batch.adapters }
  const options = { ...how, norm: layer.inputNorm }
  const { q, keys, values } = cache
    ? throughCache(tape, decoder, layer, x, table, cache, options)
    : turned(tape, decoder, layer, x, batch, table, options)
  const attended = attention(tape, q, keys, values, batch, headShape(decoder.config, index), cache?.paged)
  tape.done(q)
  if (!cache) tape.done(keys, values)
  const middle = added(tape, attended, layer.o, how, x, layer.oNorm)
  tape.done(attended)
  const gated = swiGlu(tape, middle, layer.gate, layer.up, { ...how, norm: layer.postNorm }, gemma ? 'gelu' : 'silu')
  const out = added(tape, gated, layer.down, how, middle, layer.downNorm)
  tape.done(gated, middle)
  return out
}

/** residual + projection(x), or its norm where it has one. */
function added(tape: Tape, x: Tensor, projection: Projection, how: LinearsArguments, residual: Tensor, norm?: Norm): Tensor {
  const [y] = linears(tape, x, [projection], norm ? how : { ...how, residual })
  if (!norm) return y
  const sum = rmsNormAdded(tape, y, norm, residual)
  tape.done(y)
  return sum
}

/** The heads of a layer. */
function headShape({ heads, kvHeads, headDim, gemma }: ModelConfig, layer: number): HeadShape {
  if (!gemma) return { heads, kvHeads, headDim }
  const window = gemma.slidingLayers.includes(layer) ? gemma.slidingWindow : undefined
  return { heads, kvHeads, headDim, window, scale: gemma.queryPreAttnScalar ** -0.5 }
}

interface Attended {
  q: Tensor
  keys: Tensor
  values: Tensor
}

/** Turns q and k of the batch's own rows. */
function turned(
  tape: Tape,
  decoder: Decoder,
  layer: DecoderLayer,
  x: Tensor,
  batch: RowBatch,
  table: GpuBuffer,
  options: LinearsArguments,
): Attended {
  const { heads, kvHeads, headDim } = decoder.config
  const projections = [layer.q, layer.k, layer.v]
  if (layer.qNorm && layer.kNorm) {
    const [q, k, values] = linears(tape, x, projections, options)
    const keys = rmsNormTurned(tape, k, layer.kNorm, batch, table)
    const attending = rmsNormTurned(tape, q, layer.qNorm, batch, table)
    tape.done(q, k)
    return { q: attending, keys, values }
  }
  const { outputs, turned: done } = linearsTurned(tape, x, projections, { info: batch.info, table, headDim }, options)
  const [q, k, values] = outputs
  const keys = rope(tape, k, batch, table, kvHeads, headDim, done)
  return { q: rope(tape, q, batch, table, heads, headDim, done), keys, values }
}

/** Turns q, puts this pass's keys, turned, and values into the cache, and gives the cache to read. */
function throughCache(
  tape: Tape,
  decoder: Decoder,
  layer: DecoderLayer,
  x: Tensor,
  table: GpuBuffer,
  { layers, index, slots, rows, paged }: CacheArguments & { index: number },
  options: LinearsArguments,
): Attended {
  const { kvHeads, headDim } = decoder.config
  const { k: kCache, v: vCache } = layers[index]
  const into = { slots, table, headDim, kCache, vCache, f16: paged?.f16 ?? false }
  const cached = (buffer: GpuBuffer) => new Tensor(buffer, rows, kvHeads * headDim, false)
  const [keys, values] = [cached(kCache), cached(vCache)]
  if (!layer.qNorm || !layer.kNorm) {
    return { q: linearsIntoCache(tape, x, [layer.q, layer.k, layer.v], into, options), keys, values }
  }
  const outputs = linears(tape, x, [layer.q, layer.k, layer.v], options)
  return { q: normIntoCache(tape, outputs, [layer.qNorm, layer.kNorm], into), keys, values }
}
