/**
 * Adapters on the GPU, for steps whose rows use different ones. For the projections of one input, the policy's adapter (a copy of its trained values)
 * and the named ones are stacked along the rank into one low-rank product (kernels/lora/stack.wgsl), from which each row keeps its own adapter's
 * part.
 * - Bits: a row sums over the weight, then over the whole stacked rank in order; the parts of other adapters add 0. So it has the same bits as a
 *   decoder with only its adapter.
 * - Cost: a step computes all parts for all rows, which adds rank / K and rank / N of a projection's work. The bank has room for the loaded adapters,
 *   and grows in powers of two.
 * - Memory: 4 x rank x (inputs + outputs) bytes per projection, where rank is the policy's rank plus width x places: every named adapter takes the
 *   width of the widest.
 */
import type { Projection } from '../autograd/ops/linear.ts'
import type { RowAdapters, StackedLora } from '../autograd/ops/linears.ts'
import { UserError } from '../common/errors.ts'
import type { BufferRange, Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { setColumns } from '../kernels/lora/lora.ts'
import { projectionsOf, type Decoder } from '../model/decoder/decoder.ts'
import { paddedRank, rankOf, type Adapter } from '../model/files/peft.ts'
import { firstNamed, placeOfPolicy } from './step-rows.ts'

/** Alignment in values of the parts of a buffer, as required for bindings. */
const alignment = 64

/** Projections that have the same input. */
interface Group {
  projections: Projection[]
  /** Rank of the policy's adapter; 0 if there is none. */
  own: number
  buffer?: GpuBuffer
  stack?: StackedLora
}

export class AdapterBank {
  readonly #gpu: Gpu
  readonly #groups: Group[]
  readonly #of = new Map<Projection, Group>()
  /** Rank of each named adapter's part, and the number of such parts that there is room for. */
  #width = 0
  #room = 0
  /** For each place from `firstNamed` on, the scales of its adapter by the projection's name. */
  readonly #scales: Map<string, number>[] = []
  #made = false
  /** Whether the policy's part is out of date. */
  #stale = true
  /** Version of the buffers' layout: commands recorded with an older one must be recorded again. */
  layout = 0

  constructor(decoder: Decoder) {
    this.#gpu = decoder.gpu
    this.#groups = decoder.layers.flatMap(projectionsOf).map((projections) => {
      return { projections, own: Math.max(...projections.map(({ lora }) => lora?.rank ?? 0)) }
    })
    for (const group of this.#groups) for (const projection of group.projections) this.#of.set(projection, group)
  }

  /** Whether the decoder has an adapter of its own. */
  get hasOwn(): boolean {
    return this.#groups.some(({ own }) => own > 0)
  }

  get bytes(): number {
    return this.#groups.reduce((sum, { buffer }) => sum + (buffer?.bytes ?? 0), 0)
  }

  /** Called after the policy's weights have changed. */
  changed(): void {
    this.#stale = true
  }

  /** Brings the policy's part up to date; to be called before a step with several adapters is recorded or replayed. */
  refresh(): void {
    if (!this.#made) this.#arrange(this.#width, this.#room, undefined)
    if (!this.#stale) return
    for (const { projections, own, stack } of this.#groups) {
      if (own === 0) continue
      projections.forEach(({ lora, weight }, i) => {
        if (!lora) return
        const { store, a, b, rank } = lora
        this.#gpu.copy(store.value(a), 0, stack!.a[i], 0, rank * weight.columns * 4)
        const to = { data: stack!.b[i], stride: stack!.rank, column: 0 }
        setColumns(this.#gpu, { data: store.value(b), stride: rank, column: 0 }, rank, to, weight.rows, rank)
      })
    }
    this.#stale = false
  }

  /** The adapters of a step's rows, by the indices in the buffer `places`. */
  rows(places: GpuBuffer): RowAdapters {
    return { places, of: ([first]) => this.#of.get(first)!.stack }
  }

  /**
   * Writes an adapter to a place, by commands recorded now: steps recorded earlier use the old one, later steps the new one.
   * @throws UserError if the bank would exceed what the GPU adapter can bind, GpuMemoryError; nothing is written then
   */
  write(place: number, adapter: Adapter): void {
    const { tensors } = adapter
    const gpu = this.#gpu
    const index = place - firstNamed
    const width = Math.max(this.#width, paddedRank(rankOf(adapter)))
    let room = Math.max(1, this.#room)
    while (room <= index) room *= 2
    if (!this.#made || width > this.#width || room > this.#room || this.#groups.some((g) => !g.stack && touches(g, tensors))) {
      this.#arrange(width, room, tensors)
    }
    const pairs = this.#groups.flatMap(({ projections, stack }) =>
      projections.flatMap(({ name, firstRow = 0, weight: { rows } }, i) => {
        const pair = tensors.get(name)
        return stack && pair ? [{ pair, stack, i, firstRow, rows }] : []
      }),
    )
    const uploads = allOrNone(pairs, ({ pair: { B, r }, firstRow, rows }) =>
      gpu.upload(B.subarray(firstRow * r, (firstRow + rows) * r), 'adapter', { exact: true }),
    )
    this.#scales[index] = new Map([...tensors].map(([name, { scale }]) => [name, scale]))
    for (const { projections, own, stack } of this.#groups) {
      if (!stack) continue
      this.#writeScales(projections, stack)
      projections.forEach(({ name, weight }, i) => {
        const { buffer, offset } = stack.a[i]
        // With A zero, the old values of B have no effect.
        const rows = new Float32Array(this.#width * weight.columns)
        rows.set(tensors.get(name)?.A ?? [])
        gpu.write(buffer, rows, offset + (own + index * this.#width) * weight.columns * 4)
      })
    }
    for (const [n, { pair, stack, i, rows }] of pairs.entries()) {
      const to = { data: stack.b[i], stride: stack.rank, column: stack.own + index * this.#width }
      setColumns(gpu, { data: uploads[n], stride: pair.r, column: 0 }, pair.r, to, rows, this.#width)
    }
    gpu.flush()
    for (const buffer of uploads) buffer.release()
  }

  release(): void {
    this.#gpu.flush()
    for (const group of this.#groups) {
      group.buffer?.release()
      group.buffer = group.stack = undefined
    }
    this.#made = false
  }

  /** Reallocates the buffers for wider or more parts, and copies the present parts over. */
  #arrange(width: number, room: number, coming: Adapter['tensors'] | undefined): void {
    const gpu = this.#gpu
    const plans = this.#groups.map((group) => {
      const wanted = group.own > 0 || group.stack !== undefined || (coming !== undefined && touches(group, coming))
      return wanted ? planOf(group, width, room) : undefined
    })
    const { maxBinding } = gpu.facts.limits
    const most = Math.max(0, ...plans.map((plan) => (plan ? plan.values * 4 : 0)))
    if (most > maxBinding) {
      throw new UserError(
        `${room} adapters of rank ${width} need a buffer of ${most} bytes together, but this GPU can bind at most ${maxBinding}. Load fewer, or adapters of a smaller rank.`,
      )
    }
    const groups = this.#groups.flatMap((group, g) => (plans[g] ? [{ group, plan: plans[g] }] : []))
    // All buffers are allocated before anything changes, so that everything stays as it is if memory runs out.
    const buffers = allOrNone(groups, ({ plan }) => gpu.pool.acquire(plan.values * 4, 'adapters', { exact: true }))
    const old = this.#groups.map(({ buffer }) => buffer)
    const [oldWidth, oldRoom] = [this.#width, this.#room]
    this.#width = width
    this.#room = room
    this.#made = this.#stale = true
    this.layout++
    groups.forEach(({ group, plan }, g) => {
      const buffer = buffers[g]
      gpu.clear(buffer)
      const range = ([from, count]: [number, number]): BufferRange => ({ buffer, offset: from * 4, bytes: count * 4 })
      const { own, stack: before } = group
      const [a, b] = [plan.a.map(range), plan.b.map(range)]
      const stack = { own, width, rank: plan.rank, a, b, scales: range(plan.scales), perProjection: firstNamed + room }
      Object.assign(group, { buffer, stack })
      if (before) {
        for (let i = 0; i < oldRoom; i++) bringOver(gpu, group.projections, before, stack, own + i * oldWidth, own + i * width)
      }
      this.#writeScales(group.projections, stack)
    })
    gpu.flush()
    for (const buffer of old) buffer?.release()
  }

  #writeScales(projections: Projection[], { scales, perProjection }: StackedLora): void {
    const values = new Float32Array(projections.length * perProjection)
    projections.forEach(({ name, lora }, i) => {
      values[i * perProjection + placeOfPolicy] = lora?.scale ?? 0
      this.#scales.forEach((of, place) => (values[i * perProjection + firstNamed + place] = of.get(name) ?? 0))
    })
    this.#gpu.write(scales.buffer, values, scales.offset)
  }
}

const touches = ({ projections }: Group, tensors: Adapter['tensors']): boolean =>
  projections.some(({ name }) => tensors.has(name))

/** Acquires a buffer for each item; if one fails, releases the others. */
function allOrNone<T>(items: readonly T[], acquire: (item: T) => GpuBuffer): GpuBuffer[] {
  const made: GpuBuffer[] = []
  try {
    for (const item of items) made.push(acquire(item))
    return made
  } catch (error) {
    for (const buffer of made) buffer.release()
    throw error
  }
}

/** The layout of a group's buffer: each part's offset and size, in values. */
function planOf({ projections, own }: Group, width: number, room: number) {
  const rank = own + width * room
  let values = 0
  const take = (count: number): [number, number] => {
    const from = values
    values += Math.ceil(count / alignment) * alignment
    return [from, count]
  }
  const a = projections.map(({ weight }) => take(rank * weight.columns))
  const b = projections.map(({ weight }) => take(rank * weight.rows))
  const scales = take(projections.length * (firstNamed + room))
  return { rank, a, b, scales, values }
}

/** Copies the part that begins at rank `from` of one stack to rank `to` of another; if the new part is wider, the rest is 0. */
function bringOver(gpu: Gpu, projections: Projection[], before: StackedLora, after: StackedLora, from: number, to: number): void {
  projections.forEach(({ weight: { rows, columns } }, i) => {
    gpu.copy(before.a[i], from * columns * 4, after.a[i], to * columns * 4, before.width * columns * 4)
    const source = { data: before.b[i], stride: before.rank, column: from }
    setColumns(gpu, source, before.width, { data: after.b[i], stride: after.rank, column: to }, rows, after.width)
  })
}
