/**
 * The decoder-only transformer of the families in ./families: blocks of attention, or of a Gated DeltaNet (delta-layer.ts) or a gated convolution
 * (conv-layer.ts) in its place, and a gated MLP, with norms before these, after or both (transformers' modeling_llama.py and its kin). One forward pass serves training, scoring, prefill and decode: rows are tokens of any sequences, and `layout` says what
 * each row sees, so all of them sum in the same order.
 */
import type { RowLayout } from '../../autograd/ops/attention.ts'
import type { Head } from '../../autograd/ops/head.ts'
import type { Projection } from '../../autograd/ops/linear.ts'
import { linears, readsHalf, swiGlu, type LinearsArguments, type RowAdapters } from '../../autograd/ops/linears.ts'
import { rmsNorm, type Norm } from '../../autograd/ops/norm.ts'
import { embedding, type Embedding, type TokenLists } from '../../autograd/ops/rows.ts'
import type { ParameterStore, TrainedValues } from '../../autograd/parameters.ts'
import { checkpoint, type Tape } from '../../autograd/tape.ts'
import type { Tensor } from '../../autograd/tensor.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import { attended, type AttentionPart } from './attention-layer.ts'
import { layerInBlocks } from './block-layer.ts'
import { convMixed, type ConvPart } from './conv-layer.ts'
import { deltaMixed, type DeltaPart } from './delta-layer.ts'
import { stateOf, type CacheArguments } from './layer-cache.ts'
import { inverseFrequencies, rotaryFactor, rotaryTable } from './rope.ts'
import type { ModelConfig } from '../types.ts'

export interface DecoderLayer {
  /** Norm of the mixer's input; OLMo 2 has none. */
  inputNorm?: Norm
  /** The part through which a token sees those before it. */
  mixer: AttentionPart | DeltaPart | ConvPart
  /** Norm of the mixer's output, before the residual is added: Gemma 3 and OLMo 2. */
  oNorm?: Norm
  /** Norm of the MLP's input, likewise. */
  postNorm?: Norm
  gate: Projection
  up: Projection
  down: Projection
  /** Norm of the MLP's output, as oNorm. */
  downNorm?: Norm
}

/** A layer's projections, together those of one input. */
export function projectionsOf({ mixer, gate, up, down }: DecoderLayer): Projection[][] {
  return [...mixing(mixer), [gate, up], [down]]
}

function mixing(mixer: DecoderLayer['mixer']): Projection[][] {
  if (mixer.kind === 'delta') return [[mixer.qkv, mixer.z, mixer.b, mixer.a], [mixer.out]]
  if (mixer.kind === 'conv') return [[mixer.gates], [mixer.out]]
  return [[mixer.q, mixer.k, mixer.v], [mixer.o]]
}

/** A layer with other projections in the places of its own. */
export function withProjections(layer: DecoderLayer, change: (projection: Projection) => Projection): DecoderLayer {
  const { mixer, gate, up, down } = layer
  return { ...layer, mixer: changed(mixer, change), gate: change(gate), up: change(up), down: change(down) }
}

function changed(mixer: DecoderLayer['mixer'], change: (projection: Projection) => Projection): DecoderLayer['mixer'] {
  if (mixer.kind === 'delta') {
    const { qkv, z, b, a, out } = mixer
    return { ...mixer, qkv: change(qkv), z: change(z), b: change(b), a: change(a), out: change(out) }
  }
  if (mixer.kind === 'conv') return { ...mixer, gates: change(mixer.gates), out: change(mixer.out) }
  return { ...mixer, q: change(mixer.q), k: change(mixer.k), v: change(mixer.v), o: change(mixer.o) }
}

/** A layer's norms whose weights are in files. */
export function normsOf({ inputNorm, mixer, oNorm, postNorm, downNorm }: DecoderLayer): Norm[] {
  const inner = mixer.kind === 'attention' ? [mixer.qNorm, mixer.kNorm] : mixer.kind === 'delta' ? [mixer.norm] : []
  return [inputNorm, postNorm, ...inner, oNorm, downNorm].filter((norm) => norm !== undefined)
}

/** A layer's values in files that are neither projections nor norms. */
export const valuesOf = ({ mixer }: DecoderLayer): TrainedValues[] =>
  mixer.kind === 'delta' ? [mixer.conv, mixer.aLog, mixer.dtBias] : mixer.kind === 'conv' ? [mixer.conv] : []

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
  readonly #factor: number
  /** Layers with a table of their own, and what that is made of. */
  readonly #others: readonly number[]
  readonly #otherInverse: Float32Array
  #table: GpuBuffer | undefined
  #other: GpuBuffer | undefined
  #positions = 0
  constructor(gpu: Gpu, config: ModelConfig) {
    this.#gpu = gpu
    this.#inverse = inverseFrequencies(config)
    this.#factor = rotaryFactor(config.ropeScaling)
    const { localRopeTheta, slidingLayers = [], layersWithoutRope = [] } = config
    this.#others = localRopeTheta ? slidingLayers : layersWithoutRope
    // Where nothing turns all angles are 0: x cos - y sin is x, to the bit.
    this.#otherInverse = localRopeTheta
      ? inverseFrequencies({ ...config, ropeTheta: localRopeTheta, ropeScaling: { type: 'default' } })
      : new Float32Array(this.#inverse.length)
  }
  /** A table that covers positions 0 .. positions - 1: that of a layer, or the one of most families' layers. */
  table(positions: number, layer?: number): GpuBuffer {
    if (!this.#table || positions > this.#positions) {
      this.#positions = Math.max(256, 2 ** Math.ceil(Math.log2(positions)))
      this.release()
      // The first last: its presence says that both are there.
      if (this.#others.length > 0)
        this.#other = this.#gpu.upload(rotaryTable(this.#otherInverse, this.#positions), 'rotary table of other layers')
      this.#table = this.#gpu.upload(rotaryTable(this.#inverse, this.#positions, this.#factor), 'rotary table')
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

/** Whether a layer's activations are made again on the way back: not, all, or all but what attention gave. */
export type Checkpointing = boolean | 'keep attention'

/**
 * Hidden states after the last layer, before the last norm: (rows, hidden).
 * @param options.checkpointing keeps only each layer's input for the backward pass and computes the layer again: all but the last, whose turn comes first
 */
export function decoderHidden(
  tape: Tape,
  decoder: Decoder,
  batch: RowBatch,
  options: { cache?: CacheArguments; checkpointing?: Checkpointing } = {},
): Tensor {
  let hidden = embedding(tape, batch.ids, batch.rows, decoder.embedding, batch.tokenLists)
  decoder.layers.forEach((_, i) => {
    const table = decoder.rotary.table(batch.positions, i)
    const run = (t: Tape, x: Tensor) =>
      decoderLayer(t, decoder, i, x, batch, table, options.cache && { ...options.cache, index: i })
    // The last layer's backward pass comes first, so keeping its activations costs no extra memory.
    const checkpointing = i < decoder.layers.length - 1 && options.checkpointing
    const next = checkpointing ? checkpoint(tape, hidden, run, checkpointing === 'keep attention') : run(tape, hidden)
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
  const { activation = 'silu', residualScale: scale } = decoder.config
  const how = { dropoutSeed: batch.dropoutSeed, adapters: batch.adapters }
  const inBlocks = cache && layerInBlocks(tape, decoder.config, layer, x, batch, table, cache, how)
  if (inBlocks) return inBlocks
  const options = { ...how, norm: layer.inputNorm }
  const { mixer } = layer
  const mixed =
    mixer.kind === 'attention'
      ? attended(tape, decoder.config, mixer, index, x, batch, table, cache, options)
      : mixedByState(tape, decoder.config, mixer, x, batch, cache, options)
  const middle = added(tape, mixed, mixer.kind === 'attention' ? mixer.o : mixer.out, { ...how, scale }, x, layer.oNorm)
  tape.done(mixed)
  const half = readsHalf(tape, layer.down, batch.adapters)
  const gated = swiGlu(tape, middle, layer.gate, layer.up, { ...how, norm: layer.postNorm }, activation, half)
  const out = added(tape, gated, layer.down, { ...how, scale, last: true }, middle, layer.downNorm)
  tape.done(gated, middle)
  return out
}

/** The output, before its last projection, of what keeps a state of each sequence. */
function mixedByState(
  tape: Tape,
  config: ModelConfig,
  mixer: DeltaPart | ConvPart,
  x: Tensor,
  layout: RowLayout,
  cache: (CacheArguments & { index: number }) | undefined,
  options: LinearsArguments,
): Tensor {
  const state = cache && stateOf(cache)
  return mixer.kind === 'delta'
    ? deltaMixed(tape, config.qwen35!, mixer, x, layout, state, options)
    : convMixed(tape, config.shortConv!, mixer, x, layout, state, options)
}

/** residual + scale * projection(x), or the norm of this product where it has one. */
function added(tape: Tape, x: Tensor, projection: Projection, how: LinearsArguments, residual: Tensor, norm?: Norm): Tensor {
  const [y] = linears(tape, x, [projection], norm ? { ...how, last: false } : { ...how, residual })
  if (!norm) return y
  const sum = rmsNorm(tape, y, norm, { residual })
  tape.done(y)
  return sum
}
