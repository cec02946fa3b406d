/**
 * Micro-batches on the GPU. Commands are recorded once for a capacity (of rows and of scored tokens) and replayed with the real counts for every
 * micro-batch that fits. A replay creates no buffer, bind group, pipeline or tensor, and is one submit and one read-back. For a larger micro-batch
 * the plans are recorded anew.
 * - What varies is stored in buffers that persist (ids, targets, advantages), or is a count that the plan leaves open (rows, the loss's 1 / N, the
 *   factor of gradients in f16, the dropout seed).
 * - All plans of a runner share their scratch buffers, since they run one after another.
 * - With a built-in loss, forward and backward are one plan. A loss on the host runs between two plans.
 * - `plans: false` runs the same tape eagerly in buffers of the exact size: slow and simple, for tests to compare with.
 */
import type { HeadOutput } from '../autograd/ops/head.ts'
import { Tape } from '../autograd/tape.ts'
import { timeline } from '../common/timeline.ts'
import { tracer } from '../common/trace.ts'
import type { TrainingBatch } from '../common/types.ts'
import type { Plan } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { sendInSections } from '../gpu/share.ts'
import { capacityOf, map, Size, times, type Count } from '../gpu/size.ts'
import { gradientScaleFor, withGradientScale } from '../kernels/common/matrix-units.ts'
import type { Checkpointing, Decoder } from '../model/decoder/decoder.ts'
import { listsByToken, type PackedBatch } from '../model/decoder/packed.ts'
import { forwardLogprobs, makeBatch, positionsOf, writeBatch, type BatchCounts, type DeviceBatch } from './device-batch.ts'
import { runLossKernel, type Loss } from './losses/index.ts'

/** Terms that are added to any loss. Both default to 0. */
export interface AddedTerms {
  /** Weight of the KL term (losses/kl.ts), which reads the samples' `refLogprobs`. */
  beta?: number
  /** Weight of the entropy bonus: this times the mean entropy over the loss tokens is subtracted from the loss. */
  entropyCoef?: number
}

/** What to do with a micro-batch. A plan depends on all of it except the values of N, the factor and the dropout seed. */
export interface Work extends AddedTerms {
  /**
   * `score`: forward only; `reference`: the same with the reference model. `loss`: forward, a built-in loss and backward. `host`: forward, for a call
   * of `backward` later.
   */
  kind: 'score' | 'reference' | 'loss' | 'host'
  temperature: number
  checkpointing: Checkpointing
  /** The built-in loss. */
  loss?: Loss
  /** N of the loss. */
  lossTokens?: number
  /** Factor of gradients on matrix units (`scaleOf`). With a loss on the host, `backward` chooses it. */
  gradientScale?: number
  /** Seed of LoRA's dropout. Default: no dropout. */
  dropoutSeed?: number
}

/** Inputs of a built-in loss for each scored token. `refLogprobs` is needed for the KL term only. */
export interface LossData {
  inferenceLogprobs: Float32Array
  advantages: Float32Array
  refLogprobs?: Float32Array
}

/** Results for each scored token. `losses` is empty except for a built-in loss. */
export interface TokenResults {
  logprobs: Float32Array
  entropy: Float32Array
  losses: Float32Array
}

/** The sizes of a micro-batch on which its buffers depend. */
type Counted = Pick<PackedBatch, 'rows'> & { targets: { length: number } }

/** Each kind of result starts at a multiple of this many values, so that it can be bound by itself. */
const aligned = 64

/** The buffers for a capacity. */
interface Room {
  /** Whether counts are open, as in a plan. */
  open: boolean
  counts: BatchCounts
  batch: DeviceBatch
  lossTokens: Count
  gradientScale: Count
  inferenceLogprobs: GpuBuffer
  advantages: GpuBuffer
  refLogprobs: GpuBuffer
  coefficient: GpuBuffer
  /** Log-probabilities, entropies and losses: `stride` values each. */
  results: GpuBuffer
  stride: number
}

interface Plans {
  work: Work
  rotary: GpuBuffer
  forward: Plan
  backward?: Plan
}

export interface RunnerOptions {
  /** The most rows in a micro-batch (a longer sequence gets a micro-batch of its own). Capacities are powers of two up to it. */
  rowsAtMost: number
  plans?: boolean
  /** The model for `reference` work. It may have any architecture, but must have the policy's tokens. */
  reference?: Decoder
}

/** The factor of a batch's gradients on matrix units with a built-in loss, whose ratios are taken to be near 1. */
export function scaleOf({ samples, lossTokenCount }: TrainingBatch, { beta = 0, entropyCoef = 0 }: AddedTerms): number {
  let most = Math.max(beta, Math.abs(entropyCoef))
  for (const { advantages } of samples) for (const a of advantages) most = Math.max(most, Math.abs(a))
  return gradientScaleFor(most / lossTokenCount)
}

/** Runs the micro-batches of a decoder, one after another. */
export class MicroBatchRunner {
  readonly #decoder: Decoder
  readonly #options: RunnerOptions
  readonly #plans = new Map<Work['kind'], Plans>()
  readonly #arena: GpuBuffer[] = []
  #room: Room | undefined
  /** The backward pass that follows a `host` run. */
  #backward: ((gradientScale: number) => Promise<void> | void) | undefined
  /** The largest gradient of a token's entropy in it: the bonus also counts where the loss has no gradient. */
  #bonus = 0

  constructor(decoder: Decoder, options: RunnerOptions) {
    this.#decoder = decoder
    this.#options = options
  }

  /** Allocates buffers for the largest of several micro-batches, so that plans are recorded once for all of them. */
  #reserve(batches: Counted[]): void {
    const { rows, scored, heldRows, heldScored } = this.#needs(batches)
    if (rows <= heldRows && scored <= heldScored) return
    this.release()
    const most = Math.max(heldRows, this.#capacity(rows))
    // There are more scored tokens than rows only if many completions start after the last row of one prompt.
    const tokens = Math.max(heldScored, most, scored > most ? this.#capacity(scored) : 0)
    this.#room = this.#makeRoom(Size.of('rows', most), Size.of('scored tokens', tokens), true)
  }

  /**
   * Like `#reserve`, and also allocates the scratch of the plans for this work. Waits until the device has confirmed the allocations.
   * @throws GpuMemoryError; the runner then holds nothing, and smaller micro-batches can be tried
   */
  async makeRoom(batches: PackedBatch[], work: Work): Promise<void> {
    // Without scored tokens there is nothing to run.
    if (this.#options.plans === false || batches.every(({ targets }) => targets.length === 0)) return
    const positions = Math.max(...batches.map(positionsOf))
    const { rows, scored, heldRows, heldScored } = this.#needs(batches)
    if (rows <= heldRows && scored <= heldScored && this.#known(work, positions)) return
    const passes = (): (() => void)[] => {
      this.#reserve(batches)
      this.#room!.batch.rows.positions = positions
      this.#decoderOf(work).rotary.table(positions)
      return this.#passes(this.#room!, work)
    }
    try {
      await this.#decoder.gpu.makeRoom(passes, this.#arena)
    } catch (error) {
      this.release()
      throw error
    }
  }

  #needs(batches: Counted[]) {
    const [rows, scored] = [Math.max(0, ...batches.map((b) => b.rows)), Math.max(0, ...batches.map((b) => b.targets.length))]
    const held = this.#room
    const [heldRows, heldScored] = held ? [capacityOf(held.counts.rows), capacityOf(held.counts.scored)] : [0, 0]
    return { rows, scored, heldRows, heldScored }
  }

  /**
   * Submits a micro-batch and reads its results back. The commands are submitted when this returns, so the next micro-batch may be submitted before
   * the promise settles. Exceptions: with a loss on the host, `backward` comes first; and if an engine shares the device, the commands go out in
   * sections (gpu/share.ts), so the promise must settle first.
   */
  run(packed: PackedBatch, work: Work, data?: LossData): Promise<TokenResults> {
    const { gpu } = this.#decoder
    const names = { score: 'score', reference: 'reference', loss: 'forward and backward', host: 'forward' }
    const counts = { rows: packed.rows, 'scored tokens': packed.targets.length }
    const begin = performance.now()
    const [flight, recording] = [
      tracer?.flight('micro-batch', names[work.kind], counts),
      tracer?.span('JavaScript', 'record micro-batch'),
    ]
    const plans = this.#options.plans !== false
    let sent: Promise<void> | undefined
    if (plans) this.#reserve([packed])
    else this.#room = this.#makeRoom(packed.rows, packed.targets.length, false, packed, work)
    const room = this.#room!
    const byToken = room.batch.rows.tokenLists && trains(work) ? listsByToken(packed.ids) : undefined
    writeBatch(gpu, room.batch, packed, byToken)
    if (data) {
      gpu.write(room.inferenceLogprobs, data.inferenceLogprobs)
      gpu.write(room.advantages, data.advantages)
      if (data.refLogprobs) gpu.write(room.refLogprobs, data.refLogprobs)
    }
    const count = packed.targets.length
    this.#bonus = Math.abs(work.entropyCoef ?? 0) / (work.lossTokens ?? 1)
    if (plans) {
      const values = {
        rows: packed.rows,
        'scored tokens': count,
        'distinct tokens': byToken?.tokens.length ?? 0,
        'loss tokens': work.lossTokens ?? 0,
        'gradient scale': work.gradientScale ?? 0,
        'dropout seed': work.dropoutSeed ?? 0,
      }
      const { forward, backward } = this.#plansFor(room, work)
      sent = this.#send(forward, values, packed.rows)
      this.#backward = backward && ((scale) => this.#send(backward, { ...values, 'gradient scale': scale }, packed.rows))
    } else this.#runEager(room, work)
    const range = { buffer: room.results, offset: 0, bytes: room.stride * (work.kind === 'loss' ? 12 : 8) }
    const read = () => gpu.read(range, { name: names[work.kind], work: packed.rows })
    const reading = sent ? sent.then(read) : read()
    if (!plans && work.kind !== 'host') this.#freeRoom()
    recording?.end()
    return reading.then((bytes) => {
      flight?.end()
      const name = `micro-batch, ${names[work.kind]}`
      timeline?.add({ track: 'trainer', name, start: begin, end: performance.now(), detail: counts, fine: true })
      const part = (i: number): Float32Array => new Float32Array(bytes, i * room.stride * 4, count)
      return { logprobs: part(0), entropy: part(1), losses: work.kind === 'loss' ? part(2) : new Float32Array(0) }
    })
  }

  /** After a `host` run: runs the backward pass. `coefficient`: dLoss/dlogprob of each scored token. */
  async backward(coefficient: Float32Array): Promise<void> {
    this.#decoder.gpu.write(this.#room!.coefficient, coefficient)
    await this.#backward!(gradientScaleFor(coefficient.reduce((most, c) => Math.max(most, Math.abs(c)), this.#bonus)))
    this.#backward = undefined
    this.#decoder.gpu.flush()
    if (!this.#room!.open) this.#freeRoom()
  }

  /** Releases all buffers and plans. The runner can be used again. */
  release(): void {
    const { gpu } = this.#decoder
    gpu.flush()
    for (const plans of this.#plans.values()) this.#drop(plans)
    gpu.pool.returnArena(this.#arena.splice(0))
    this.#freeRoom()
  }

  /** Submits a plan at once. If an engine shares the device: section by section, and resolves after the last one. */
  #send(plan: Plan, values: Record<string, number>, rows: number): Promise<void> | undefined {
    const { gpu } = this.#decoder
    if (gpu.share.engines > 0 && plan.cuts.length > 0) return sendInSections(gpu, plan, values, rows)
    gpu.replay(plan, values)
    return undefined
  }

  /** The capacity for `count` rows: a power of two from 64 up to the rows of a micro-batch; for longer sequences, in eighths of a power of two. */
  #capacity(count: number): number {
    const most = Math.ceil(this.#options.rowsAtMost / aligned) * aligned
    const up = (step: number): number => Math.ceil(count / step) * step
    if (count > most) return up(Math.max(aligned, 2 ** (Math.ceil(Math.log2(count)) - 3)))
    return Math.min(most, Math.max(aligned, 2 ** Math.ceil(Math.log2(Math.max(1, count)))))
  }

  #makeRoom(rows: Count, scored: Count, open: boolean, packed?: PackedBatch, work?: Work): Room {
    const { gpu, embedding } = this.#decoder
    const most = capacityOf(rows)
    let tokens: Count | undefined
    if (embedding.trained) tokens = packed ? new Set(packed.ids).size : Size.of('distinct tokens', most)
    const counts = { rows, scored, tokens }
    const values = (n: number, label: string): GpuBuffer => gpu.pool.acquire(n * 4, label)
    const stride = Math.ceil(capacityOf(scored) / aligned) * aligned
    return gpu.pool.orNothing(() => ({
      open,
      counts,
      batch: makeBatch(gpu, counts, work?.dropoutSeed),
      lossTokens: work?.lossTokens ?? Size.of('loss tokens'),
      gradientScale: work?.gradientScale ?? Size.of('gradient scale'),
      inferenceLogprobs: values(stride, 'inference logprobs'),
      advantages: values(stride, 'advantages'),
      refLogprobs: values(stride, 'reference logprobs'),
      coefficient: values(stride, 'loss gradient'),
      results: values(stride * 3, 'token results'),
      stride,
    }))
  }

  #freeRoom(): void {
    const room = this.#room
    if (!room) return
    room.batch.release()
    const { inferenceLogprobs, advantages, refLogprobs, coefficient, results } = room
    for (const buffer of [inferenceLogprobs, advantages, refLogprobs, coefficient, results]) buffer.release()
    this.#room = undefined
  }

  /** The plans for this kind of work: the recorded ones if they fit, otherwise new ones. */
  #plansFor(room: Room, work: Work): Plans {
    const { positions } = room.batch.rows
    const known = this.#known(work, positions)
    if (known) return known
    const other = this.#plans.get(work.kind)
    if (other) this.#drop(other)
    const [forward, backward] = this.#decoder.gpu.recordAll(this.#passes(room, work), this.#arena)
    const plans = { work, rotary: this.#decoderOf(work).rotary.table(positions), forward, backward }
    this.#plans.set(work.kind, plans)
    return plans
  }

  #known(work: Work, positions: number): Plans | undefined {
    const known = this.#plans.get(work.kind)
    const fits = known && known.rotary === this.#decoderOf(work).rotary.table(positions) && sameWork(known.work, work)
    return fits ? known : undefined
  }

  /** The functions that record the plans for this kind of work. */
  #passes(room: Room, work: Work): (() => void)[] {
    room.batch.rows.dropoutSeed = work.dropoutSeed === undefined ? undefined : Size.of('dropout seed')
    let open: { tape: Tape; out: HeadOutput } | undefined
    const passes: (() => void)[] = [() => (open = this.#forward(room, work))]
    if (work.kind === 'host') passes.push(() => this.#goBack(room, open!))
    return passes
  }

  #drop({ work, forward, backward }: Plans): void {
    const { gpu } = this.#decoder
    gpu.flush()
    gpu.releasePlan(forward)
    if (backward) gpu.releasePlan(backward)
    this.#plans.delete(work.kind)
  }

  #runEager(room: Room, work: Work): void {
    const open = this.#forward(room, work)
    this.#backward = open && ((gradientScale) => this.#goBack({ ...room, gradientScale }, open))
  }

  /** Runs the forward pass, and with a built-in loss also the backward pass. For a loss on the host, returns the tape for `backward`. */
  #forward(room: Room, work: Work): { tape: Tape; out: HeadOutput } | undefined {
    const { gpu } = this.#decoder
    const { counts, results, stride } = room
    const tape = new Tape(gpu, trains(work))
    const kernel = work.loss?.kernel
    const chunkLoss = ({ first, count }: { first: number; count: Count }, logprobs: GpuBuffer): GpuBuffer => {
      const part = (buffer: GpuBuffer, start = 0) => ({ buffer, offset: (start + first) * 4, bytes: capacityOf(count) * 4 })
      const [inferenceLogprobs, advantages] = [part(room.inferenceLogprobs), part(room.advantages)]
      const inputs = { inferenceLogprobs, advantages, refLogprobs: part(room.refLogprobs) }
      const outputs = { gradient: part(room.coefficient), loss: part(results, stride * 2) }
      const args = { lossTokenCount: room.lossTokens, beta: work.beta }
      runLossKernel(gpu, kernel!, { logprobs: part(logprobs), ...inputs, ...outputs }, count, args)
      return room.coefficient
    }
    const { temperature, checkpointing, entropyCoef } = work
    const entropyWeight = entropyCoef && trains(work) ? map(room.lossTokens, (n) => entropyCoef / n) : undefined
    const options = { temperature, checkpointing, chunkLoss: kernel && chunkLoss, entropyWeight }
    const scaled = <T>(fn: () => T): T => withGradientScale(gpu, room.gradientScale, fn)
    const out = scaled(() => forwardLogprobs(tape, this.#decoderOf(work), room.batch, options))
    gpu.copy(out.logprobs.buffer, 0, results, 0, times(counts.scored, 4))
    gpu.copy(out.entropy.buffer, 0, results, stride * 4, times(counts.scored, 4))
    if (work.kind === 'host') return { tape, out }
    if (work.kind === 'loss') scaled(() => tape.backward())
    out.release()
    return undefined
  }

  #decoderOf({ kind }: Work): Decoder {
    return kind === 'reference' ? this.#options.reference! : this.#decoder
  }

  #goBack(room: Room, { tape, out }: { tape: Tape; out: HeadOutput }): void {
    withGradientScale(this.#decoder.gpu, room.gradientScale, () => {
      out.backward(room.coefficient)
      tape.backward()
    })
    out.release()
  }
}

const trains = ({ kind }: Work): boolean => kind === 'loss' || kind === 'host'

/** Whether a plan recorded for `a` can be replayed for `b`. */
function sameWork(a: Work, b: Work): boolean {
  const drops = (a.dropoutSeed === undefined) === (b.dropoutSeed === undefined)
  const same = (['temperature', 'checkpointing', 'loss', 'beta', 'entropyCoef'] as const).every((key) => a[key] === b[key])
  return drops && same
}
