/**
 * The commands of one engine step: the decoder over its rows, then a draw for each sampled row.
 * - They are recorded once for each size (`roundRows`) and replayed. A step creates no buffer, bind group, pipeline or tensor, and is one submit.
 *   What varies (tokens, positions, cache rows, sampling settings, seeds) is stored in buffers that persist.
 * - Plans share their scratch buffers, since they run one after another. The largest is recorded first, so that the others fit.
 * - Mixed steps, whose rows use different adapters, have plans of their own, which are recorded again whenever the adapters' buffers are replaced.
 * - `plans: false` records every step anew: slow and simple, for tests to compare with.
 */
import { Tape } from '../autograd/tape.ts'
import { GpuMemoryError } from '../gpu/errors.ts'
import type { Gpu, Plan } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { kvTextures, type CacheData } from '../kernels/common/kv-texture.ts'
import { cpuLanes } from '../kernels/common/lanes.ts'
import { feedIds } from '../kernels/embedding/embedding.ts'
import { copyCacheRows, copyRows, gatherRows } from '../kernels/rows/rows.ts'
import type { PagedCache } from '../kernels/attention/attention.ts'
import { blockWords, mostBlocks, type Sharing } from '../kernels/attention/shared.ts'
import { headShape } from '../model/decoder/attention-layer.ts'
import { decoderHidden, type Decoder } from '../model/decoder/decoder.ts'
import { stateWords, type CacheArguments, type LayerCache, type LayerState } from '../model/decoder/layer-cache.ts'
import { rotaryDimOf } from '../model/decoder/rope.ts'
import { attentionLayers, statefulLayers } from '../model/decoder/shapes.ts'
import type { AdapterBank } from './adapter-bank.ts'
import { needsMore, Sampler, type Sampled } from './sampler.ts'
import { below, roundRows, type StepRows } from './step-rows.ts'

interface StepSizes {
  /** The most sequences that run at once. */
  maxSequences: number
  /** The most rows in a step. */
  maxRows: number
  /** The most tokens in a sequence. */
  maxLength: number
  /** Pages of the KV cache, including one that is never handed out, for padding rows. */
  pages: number
  /** Tokens in a page. */
  pageSize: number
  /** The most page indices in a step. */
  maxTable: number
  /** Shortest prefix that rows go through together (`EngineOptions.sharedKeys`). */
  sharedKeys: number
  /** Whether keys and values are stored as f16 instead of float32. */
  f16: boolean
  plans: boolean
  /** Whether rows may take their token from the draw of the previous step (`fromDrawn`). */
  ahead: boolean
  /** The most steps that are read back together (blocks.ts). */
  block: number
  /** Whether the largest steps come first (`EngineOptions.full`). */
  full: boolean
}

/** What the commands of a step depend on. */
interface Kind {
  rows: number
  /** Whether the step has prompt rows, rows with different adapters, and rows that share the keys of a prefix. */
  prompts: boolean
  mixed: boolean
  shared?: boolean
}

/** Scratch buffers have room for at least this many rows. */
const rowsOfScratch = 32

/**
 * The smallest size of a scratch buffer, in bytes. With it, plans of all steps of up to 32 rows use the same buffers and therefore share their bind
 * groups. A plan has hundreds of these, and each costs a driver call per binding, and a page of memory on software adapters.
 */
function leastScratch({ config }: Decoder, { maxRows }: StepSizes): number {
  const widest = Math.max(config.hiddenSize, config.intermediateSize, config.heads * config.headDim)
  return 2 ** Math.ceil(Math.log2(4 * widest * Math.min(rowsOfScratch, maxRows)))
}

/** How many rows of the KV cache are copied at a time, if it is stored in textures. */
const copiedAtOnce = 256

export class StepCommands {
  readonly #decoder: Decoder
  readonly #gpu: Gpu
  readonly #sizes: StepSizes
  readonly #cache: CacheArguments & { paged: PagedCache }
  /** 4-byte words in a row of a layer's keys. */
  readonly #words: number
  /** Token ids as the host writes them, and as the decoder reads them: `feedIds` fills in those that were just drawn. */
  readonly #given: GpuBuffer
  readonly #ids: GpuBuffer
  readonly #info: GpuBuffer
  /** Cache rows to copy before a step: at most a page for each sequence that runs or joins. */
  readonly #pairs: GpuBuffer
  /** How rows with a common prefix read its keys together, and the buffer for their blocks. Set if this is faster and a layer sees all keys. */
  readonly sharing: (Sharing & { blocks: GpuBuffer }) | undefined
  /** Holds copied rows in between if the cache is in textures, which cannot be copied onto themselves. */
  readonly #between: GpuBuffer | undefined
  /** State slots to copy before a step, in models with recurrent states. */
  readonly #statePairs: GpuBuffer | undefined
  /** Index of each row's adapter, in mixed steps. */
  readonly #places: GpuBuffer
  readonly #adapters: AdapterBank
  #layout = 0
  readonly #sampler: Sampler
  /** Plans by key, and those that `prepare` has yet to record, smallest last. */
  readonly #plans = new Map<string, Plan>()
  readonly #missing: { mixed: boolean; make: () => void }[] = []
  /** Rows of the last step without prompt rows, and whether the sizes of such steps have varied. */
  #rows = 0
  #vary = false
  /** Whether the last step had prompt rows. */
  #prompts = false
  /** Whether `makeReady` has succeeded, or need not be called. */
  ready: boolean
  /** Scratch of all plans, and the minimum size of its buffers in bytes. */
  readonly #arena: GpuBuffer[] = []
  readonly #least: number
  /** The rotary table with which the plans were recorded. If a longer table has replaced it, they are recorded again. */
  #table: GpuBuffer | undefined
  /** The same for the embedding scale, which may change with other weights. */
  #scale: number | undefined

  /** Allocates the KV cache: 2 x layers x pages x pageSize x kv heads x head size values. */
  constructor(decoder: Decoder, adapters: AdapterBank, sizes: StepSizes) {
    const { gpu, config } = decoder
    this.#decoder = decoder
    this.#adapters = adapters
    this.#gpu = gpu
    this.#sizes = sizes
    this.#least = leastScratch(decoder, sizes)
    this.ready = !sizes.plans
    this.#sampler = new Sampler(decoder, sizes.maxRows, sizes.block)
    const [ids, info, slots, places] = [1, 4, 2, 1].map((n) => gpu.pool.acquire(sizes.maxRows * n * 4, 'engine rows'))
    this.#places = places
    this.#given = ids
    this.#ids = sizes.ahead ? gpu.pool.acquire(sizes.maxRows * 4, 'engine rows') : ids
    this.#info = info
    this.#pairs = gpu.pool.acquire(2 * sizes.maxSequences * sizes.pageSize * 8, 'copied rows')
    const rows = sizes.pages * sizes.pageSize
    this.#words = (config.kvHeads * config.headDim) / (sizes.f16 ? 2 : 1)
    const room = (words: number, label: string) => gpu.pool.acquire(words * 4, label, { exact: true })
    const shape = { ...config, rotaryDim: rotaryDimOf(config) }
    const textures = sizes.f16 ? undefined : kvTextures(gpu, 2 * attentionLayers(config), sizes, shape, 'KV cache')
    const kept = (): CacheData => textures?.pop() ?? room(rows * this.#words, 'KV cache')
    if (textures) {
      const most = Math.min(copiedAtOnce, 2 * sizes.maxSequences * sizes.pageSize)
      this.#between = gpu.pool.acquire(most * this.#words * 8, 'copied rows')
    }
    const stateful = statefulLayers(config)
    const layers = Array.from({ length: config.layers }, (_, i): LayerCache | LayerState => {
      if (!stateful.includes(i)) return { k: kept(), v: kept() }
      const { inputs, states } = stateWords(config)
      const slots = sizes.maxSequences + 1
      return { inputs: room(slots * inputs, 'states'), ...(states > 0 && { states: room(slots * states, 'states') }) }
    })
    const pages = gpu.pool.acquire(sizes.maxTable * 4, 'engine pages')
    if (textures && layers.some((layer, i) => 'k' in layer && !headShape(config, i).window)) {
      const sharing = { lanes: cpuLanes(gpu).LANES, group: config.heads / config.kvHeads, fewestKeys: sizes.sharedKeys }
      const words = blockWords(roundRows(sizes.maxSequences), sharing)
      this.sharing = { ...sharing, blocks: gpu.pool.acquire(words * 4, 'engine blocks') }
    }
    const hasStates = stateful.length > 0
    const runs = hasStates ? gpu.pool.acquire(sizes.maxRows * 16, 'engine rows') : undefined
    this.#statePairs = hasStates ? gpu.pool.acquire(sizes.maxSequences * 8, 'copied states') : undefined
    this.#cache = {
      layers,
      runs,
      slots,
      paged: { pages, size: sizes.pageSize, f16: sizes.f16, prompts: true, longest: sizes.maxLength },
    }
  }

  /**
   * Must be awaited before the first step. Allocates the memory of the largest step and compiles its kernels, which takes less memory here than
   * during a step (gpu.makeRoom).
   */
  async makeReady(): Promise<void> {
    const { maxLength, maxRows, maxSequences } = this.#sizes
    const most = roundRows(maxSequences)
    this.#decoder.rotary.table(maxLength)
    const bodies = [maxRows, most].map((rows) => () => this.#recordBody({ rows, prompts: rows === maxRows, mixed: false }))
    await this.#gpu.makeRoom(() => [...bodies, () => this.#sampler.draw(most)], this.#arena, this.#sizes.full, this.#least)
    this.ready = true
  }

  /** Records the whole step in one turn of the event loop, so that no other commands come in between. `read` or `send` submits it. */
  run(step: StepRows): void {
    const gpu = this.#gpu
    gpu.write(this.#given, step.ids)
    gpu.write(this.#info, step.info)
    gpu.write(this.#cache.slots, step.slots)
    gpu.write(this.#cache.paged.pages, step.pages)
    if (this.sharing && step.blocks) gpu.write(this.sharing.blocks, step.blocks)
    if (this.#cache.runs) gpu.write(this.#cache.runs, step.runs)
    if (step.sampled.length > 0) this.#sampler.write(step.sampled)
    if (step.mixed) {
      gpu.write(this.#places, step.adapters)
      this.#adapters.refresh()
    }
    const { rows: count, mixed } = step
    const kind = { rows: count, prompts: step.prefillRows > 0, mixed, shared: step.blocks !== undefined }
    this.#prompts = kind.prompts
    if (!this.#prompts) {
      this.#vary ||= this.#rows > 0 && this.#rows !== count
      this.#rows = count
    }
    const draws = step.sampled.length
    const rows = roundRows(draws)
    const more = step.sampled.some(needsMore)
    // Plans are recorded before any part of the step is submitted: compiling a kernel would have to wait for that part to run.
    const body = this.#sizes.plans ? this.#body(kind) : undefined
    const draw = body && draws > 0 && !more ? this.#drawPlan(rows) : undefined
    // Recorded after the plans exist, so that these copies are in the step's own submit.
    if (step.copies.length > 0) this.#copy(step.copies)
    if (this.#statePairs && step.stateCopies.length > 0) this.#copyStates(this.#statePairs, step.stateCopies)
    if (body) gpu.replay(body)
    else this.#recordBody(kind)
    if (draw) gpu.replay(draw)
    else if (draws > 0) this.#sampler.draw(rows, more ? step.sampled : undefined)
    else gpu.flush()
  }

  /** Copies cache rows of shared pages for sequences that are about to write to them. */
  #copy(copies: Uint32Array): void {
    const gpu = this.#gpu
    gpu.write(this.#pairs, copies)
    for (const layer of this.#cache.layers)
      if ('k' in layer) copyCacheRows(gpu, layer, this.#pairs, copies.length / 2, this.#words, this.#between)
  }

  /** Copies the recurrent state after a prompt for each additional sequence that starts from it. */
  #copyStates(pairs: GpuBuffer, copies: Uint32Array): void {
    const gpu = this.#gpu
    gpu.write(pairs, copies)
    const words = stateWords(this.#decoder.config)
    for (const layer of this.#cache.layers) {
      if ('k' in layer) continue
      copyRows(gpu, [layer.inputs], pairs, copies.length / 2, words.inputs)
      if (layer.states) copyRows(gpu, [layer.states], pairs, copies.length / 2, words.states)
    }
  }

  /** Submits the step and waits for its tokens, in the order of `sampled`. */
  async read(step: StepRows): Promise<Sampled> {
    return await this.#sampler.read(step.sampled.length, step.rows)
  }

  /** Keeps the step's tokens on the device for `readHeld`. If that does not follow at once, `send` the step. */
  hold(step: StepRows): void {
    this.#sampler.hold(step.sampled.length)
  }

  send(): void {
    this.#gpu.flush()
  }

  /** Submits what is recorded and waits for the tokens of the held steps. @param rows total rows of these steps */
  async readHeld(rows: number): Promise<Sampled[]> {
    return await this.#sampler.readHeld(rows)
  }

  release(): void {
    this.#dropPlans()
    this.#gpu.flush()
    this.#gpu.pool.returnArena(this.#arena.splice(0))
    const { layers, slots, paged, runs } = this.#cache
    for (const layer of layers) for (const buffer of Object.values(layer) as CacheData[]) buffer.release()
    runs?.release()
    this.#statePairs?.release()
    this.#between?.release()
    this.sharing?.blocks.release()
    for (const buffer of new Set([this.#given, this.#ids, this.#info, this.#pairs, this.#places, slots, paged.pages]))
      buffer.release()
    this.#sampler.release()
  }

  /**
   * Records one more plan that later steps may need. Call it while the device is busy with a step. Does nothing
   * - until steps have varied in size: requests that begin and end together need no other sizes, and a plan takes time and memory;
   * - after a step with prompt rows: a driver may compile a kernel only after finishing what was submitted, up to two seconds later, and this thread
   *   could not serve its streams meanwhile.
   * If memory runs out, it gives up, and steps record their plans when they need them.
   */
  prepare(): void {
    if (!this.#sizes.plans || !this.#vary || this.#prompts) return
    if (this.#table !== this.#decoder.rotary.table(this.#sizes.maxLength)) return
    try {
      this.#missing.pop()?.make()
    } catch (error) {
      if (!(error instanceof GpuMemoryError)) throw error
      this.#missing.length = 0
    }
  }

  #body(kind: Kind): Plan {
    const { maxLength, maxRows, maxSequences } = this.#sizes
    const table = this.#decoder.rotary.table(maxLength)
    const { scale } = this.#decoder.embedding
    const most = roundRows(maxSequences)
    // The largest first, so that the others fit into its scratch.
    if (table !== this.#table || scale !== this.#scale) {
      this.#dropPlans()
      this.#table = table
      this.#scale = scale
      this.#bodyPlan({ rows: maxRows, prompts: true, mixed: false })
      this.#drawPlan(most)
      this.#later(false)
      for (let n = most; n >= 1; n = below(n)) this.#missing.push({ mixed: false, make: () => this.#drawPlan(n) })
    }
    if (
      kind.mixed &&
      (this.#layout !== this.#adapters.layout || !this.#plans.has(bodyKey({ rows: maxRows, prompts: true, mixed: true })))
    ) {
      this.#dropPlans(true)
      this.#layout = this.#adapters.layout
      this.#bodyPlan({ rows: maxRows, prompts: true, mixed: true })
      this.#later(true)
    }
    return this.#bodyPlan(kind)
  }

  /** Queues the plans of all sizes for `prepare`. */
  #later(mixed: boolean): void {
    const { maxRows, maxSequences } = this.#sizes
    const most = roundRows(maxSequences)
    for (let n = maxRows; n >= 1; n = below(n)) {
      if (n <= most) this.#missing.push({ mixed, make: () => this.#bodyPlan({ rows: n, prompts: false, mixed }) })
      this.#missing.push({ mixed, make: () => this.#bodyPlan({ rows: n, prompts: true, mixed }) })
    }
  }

  #bodyPlan(kind: Kind): Plan {
    return this.#plan(bodyKey(kind), () => this.#recordBody(kind))
  }

  #drawPlan(rows: number): Plan {
    return this.#plan(`draw ${rows}`, () => this.#sampler.draw(rows))
  }

  #plan(key: string, record: () => void): Plan {
    let plan = this.#plans.get(key)
    if (!plan) this.#plans.set(key, (plan = this.#gpu.record(record, this.#arena, this.#least)))
    return plan
  }

  #recordBody({ rows, prompts, mixed, shared }: Kind): void {
    const gpu = this.#gpu
    const tape = new Tape(gpu, false)
    if (this.#sizes.ahead) feedIds(gpu, this.#given, this.#sampler.results, this.#ids, rows)
    const adapters = mixed ? this.#adapters.rows(this.#places) : undefined
    const { sharing } = this
    const together = shared && sharing ? { blocks: sharing.blocks, count: mostBlocks(rows, sharing) } : undefined
    const batch = { rows, ids: this.#ids, info: this.#info, positions: this.#sizes.maxLength, adapters }
    const hidden = decoderHidden(tape, this.#decoder, batch, {
      cache: { ...this.#cache, paged: { ...this.#cache.paged, prompts, shared: together } },
    })
    const { index, hidden: taken } = this.#sampler
    // One draw for each sequence, and one for each row if prompts are scored.
    const drawn = Math.min(this.#sizes.maxRows, roundRows(this.#sizes.maxSequences + rows))
    gatherRows(gpu, hidden.buffer, index, taken, drawn, hidden.columns)
    tape.done(hidden)
  }

  /** @param mixedOnly drop only the plans of mixed steps */
  #dropPlans(mixedOnly = false): void {
    for (const [key, plan] of this.#plans) {
      if (mixedOnly && !key.endsWith(mixedKey)) continue
      this.#gpu.releasePlan(plan)
      this.#plans.delete(key)
    }
    this.#missing.splice(0, Infinity, ...this.#missing.filter(({ mixed }) => mixedOnly && !mixed))
  }
}

const mixedKey = ' mixed'
const bodyKey = ({ rows, prompts, mixed, shared = false }: Kind): string =>
  `body ${rows} ${prompts} ${shared}${mixed ? mixedKey : ''}`
