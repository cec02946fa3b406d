/**
 * Measures whether keeping cores awake makes waits shorter. Waits are grouped into blocks, and each block randomly keeps cores awake or not. Since a
 * decode step and a section of training differ, a block's time is divided by its expected time, from what earlier waits of the same names took per
 * unit of work. On some virtual machines keeping cores awake gains up to a third; where the system then puts several of the driver's threads on one
 * core, it loses up to a tenth (bench/LOG.md).
 */

/** Milliseconds of waiting in a block. Longer than a single wait, because the system's placement of the threads lasts for many waits. */
const blockMs = 60
/** Blocks of each kind (awake, asleep) before a decision is allowed, and total blocks after which one is forced. */
const fewest = 10
const most = 400
/** Once there are `known` blocks of each kind, the share `favoured` of the following ones goes to the kind that is faster so far. */
const known = 5
const favoured = 0.75
/** Until then, the share of blocks of the kind that is expected to be slower: small, because short runs end in this phase. */
const unexpected = 0.25
/** Deciding before `most` blocks requires a difference of this many standard errors. */
const clear = 3
/** The smallest relative gain for which cores are kept awake, since it costs power, memory and the host's time. */
const least = 0.02
/** The first `leftOut` waits of a name, which may compile kernels, are ignored; a name's mean follows about its last `remembered` waits. */
const leftOut = 2
const remembered = 64

/** The block that a wait belongs to, and whether cores are kept awake in it. */
export interface Turn {
  awake: boolean
  block: number
}

/** Running mean and variance of a sequence of numbers. */
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

/** The trial. Called for every wait: `turn` when it begins, and `took` when it is over. */
export class AwakeTrial {
  readonly #random: () => number
  /** Share of blocks that keep cores awake before anything is known. */
  readonly #unknown: number
  /** For each name: the number of waits so far, and the mean time per unit of work. */
  readonly #names = new Map<string, { seen: number; mean: number }>()
  /** Logarithms of each block's time divided by its expected time, for the two kinds: asleep, awake. */
  readonly #sides = [new Sample(), new Sample()]
  #turn: Turn
  /** The current block: milliseconds of all its waits, of those with an expected time, and the sum of the expected times. */
  #inBlock = { ms: 0, took: 0, expected: 0 }
  #verdict: boolean | undefined

  /**
   * @param expected whether keeping cores awake is expected to be a gain
   * @param random numbers in [0, 1)
   */
  constructor(expected: boolean, random: () => number = Math.random) {
    this.#random = random
    this.#unknown = expected ? 1 - unexpected : unexpected
    this.#turn = { awake: expected, block: 0 }
  }

  /** The turn of a wait that begins now; starts a new block if the current one is full. */
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
   * Called when a wait is over.
   * @param ms the wait's length; if waits overlap, the part after the end of the previous one
   * @returns whether to keep cores awake from now on; undefined until that is decided
   */
  took({ block }: Turn, name: string, ms: number, work: number): boolean | undefined {
    this.#inBlock.ms += ms
    // A wait that extends into the next block may belong to both kinds.
    if (block === this.#turn.block) this.#count(name, ms, work)
    return this.#verdict
  }

  /** The gain of keeping cores awake so far, minus `least`. */
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
