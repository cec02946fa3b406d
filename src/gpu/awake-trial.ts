/**
 * Whether cores that are kept awake make waits shorter, told from the waits themselves: for blocks of them cores are kept awake, for others not, drawn by lot. What a block took is
 * held against what waits of the same names took before, by the unit of work, since a decode step is no section of training. On some virtual machines it is a gain of up to a third; where the
 * system then puts the driver's threads on one core, a loss of up to a tenth (bench/LOG.md).
 */

/** Milliseconds of waiting in a block: what the system makes of the threads lasts for many waits. */
const blockMs = 60
/** Blocks either way before it may be decided, and all blocks after which it is. */
const fewest = 10
const most = 400
/** Blocks either way from which on most go the way that is faster so far, and how many of them do. */
const known = 5
const favoured = 0.75
/** How many blocks go the way that is not expected to be the faster one before that: few, as runs of some seconds are over then. */
const unexpected = 0.25
/** It is decided earlier by a difference of so many times its standard error. */
const clear = 3
/** What keeping cores awake must gain, as a share: it takes power, memory and the host's time. */
const least = 0.02
/** Waits of a name that are left out, as they may compile kernels; and after how many more those before are forgotten. */
const leftOut = 2
const remembered = 64

/** How a wait goes that begins now. */
export interface Turn {
  awake: boolean
  block: number
}

/** Numbers that come one by one. */
class Sample {
  count = 0
  mean = 0
  #squares = 0
  add(value: number): void {
    const before = this.mean
    this.mean += (value - before) / ++this.count
    this.#squares += (value - before) * (value - this.mean)
  }
  /** The square of the mean's standard error. */
  get error(): number {
    return this.#squares / (this.count - 1) / this.count
  }
}

/** Two ways for waits to go, in turn, until one is found faster. Every wait asks `turn` as it begins and tells `took` when it is over. */
export class AwakeTrial {
  readonly #random: () => number
  /** How many blocks keep cores awake before anything is known. */
  readonly #unknown: number
  /** Of each name: waits so far, and the mean of what a unit of work took. */
  readonly #names = new Map<string, { seen: number; mean: number }>()
  /** The logarithms of what blocks took by what was expected of them: asleep, awake. */
  readonly #sides = [new Sample(), new Sample()]
  #turn: Turn
  /** Of this block: milliseconds in all, of waits from which something is expected, and what that is. */
  #inBlock = { ms: 0, took: 0, expected: 0 }
  #verdict: boolean | undefined

  /**
   * @param expected whether to keep them awake is expected to be a gain
   * @param random numbers in [0, 1)
   */
  constructor(expected: boolean, random: () => number = Math.random) {
    this.#random = random
    this.#unknown = expected ? 1 - unexpected : unexpected
    this.#turn = { awake: expected, block: 0 }
  }

  /** The way for a wait that begins now. */
  turn(): Turn {
    const { ms, took, expected } = this.#inBlock
    if (ms < blockMs) return this.#turn
    if (took > 0 && expected > 0) this.#sides[Number(this.#turn.awake)].add(Math.log(took / expected))
    this.#inBlock = { ms: 0, took: 0, expected: 0 }
    this.#decide()
    const [asleep, awake] = this.#sides
    const likely = asleep.count < known || awake.count < known ? this.#unknown : this.#gain > 0 ? favoured : 1 - favoured
    this.#turn = { awake: this.#random() < likely, block: this.#turn.block + 1 }
    return this.#turn
  }

  /**
   * A wait is over, that was `ms` long for so much work, of those that are under way together the part behind the one before.
   * @returns whether to keep cores awake from now on, once that is decided
   */
  took({ block }: Turn, name: string, ms: number, work: number): boolean | undefined {
    this.#inBlock.ms += ms
    // One that reaches into the next block went both ways.
    if (block === this.#turn.block) this.#count(name, ms, work)
    return this.#verdict
  }

  /** What keeping cores awake gains beyond the least, so far. */
  get #gain(): number {
    const [asleep, awake] = this.#sides
    return asleep.mean - awake.mean - least
  }

  #count(name: string, ms: number, work: number): void {
    const one = this.#names.get(name) ?? { seen: 0, mean: 0 }
    this.#names.set(name, one)
    const before = one.seen++ - leftOut
    if (before < 0) return
    if (before > 0) {
      this.#inBlock.took += ms
      this.#inBlock.expected += work * one.mean
    }
    one.mean += (ms / work - one.mean) / Math.min(before + 1, remembered)
  }

  #decide(): void {
    const [asleep, awake] = this.#sides
    const enough =
      asleep.count >= fewest && awake.count >= fewest && Math.abs(this.#gain) > clear * Math.sqrt(asleep.error + awake.error)
    if (enough || this.#turn.block >= most) this.#verdict = this.#gain > 0
  }
}
