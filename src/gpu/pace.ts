/**
 * How much of a plan goes out in one submit on a GPU. A system ends a submit that takes too long, and the device is lost with it: Linux's amdgpu after 10 s, Intel's xe after 5 s, and
 * others watch, too. A micro-batch sent whole takes as long on a weak GPU, and with a large model on any. So a plan goes out in submits of about `aimed` ms, by how long it took the
 * last time; where that is less, whole. What a driver watches is the submit, not how many wait: none is waited for. No bit depends on it.
 */
import type { Command } from './commands.ts'
import type { Plan } from './plan.ts'

/** Milliseconds that a submit should take: a tenth of what systems allow, since workgroups of one plan differ. */
const aimed = 500
/** Commands of a submit while nobody knows how long the plan takes: a layer or less. */
const unknown = 16

/** What was sent since the last wait began. */
interface Sent {
  plans: Set<Plan>
  workgroups: number
  /** When the first of it was sent. */
  since: number
}

const nothing = (): Sent => ({ plans: new Set(), workgroups: 0, since: Infinity })

/** Commands that are no kernels count as one workgroup. */
const workgroupsOf = (command: Command): number => ('kernel' in command ? command.workgroups.reduce((a, b) => a * b, 1) : 1)

export class Pace {
  /** Milliseconds a workgroup, when the plan was last waited for. */
  readonly #rates = new WeakMap<Plan, number>()
  readonly #now: () => number
  #sent = nothing()
  /** When the last wait ended. */
  #done = 0

  /** @param now milliseconds of a clock */
  constructor(now = () => performance.now()) {
    this.#now = now
  }

  /** A plan is about to be recorded. @returns to be asked after each of its commands: whether the submit that ends with it is long enough */
  begin(plan: Plan): (command: Command) => boolean {
    this.#sent.plans.add(plan)
    const rate = this.#rates.get(plan)
    let [commands, workgroups] = [0, 0]
    return (command) => {
      commands++
      workgroups += workgroupsOf(command)
      if (rate === undefined ? commands < unknown : workgroups * rate < aimed) return false
      commands = workgroups = 0
      return true
    }
  }

  /** A submit goes out. */
  sent(commands: Command[]): void {
    this.#sent.since = Math.min(this.#sent.since, this.#now())
    this.#sent.workgroups += commands.reduce((sum, command) => sum + workgroupsOf(command), 0)
  }

  /** A wait for all that was sent begins. @returns to be called when it is over */
  wait(): () => void {
    const { plans, workgroups, since } = this.#sent
    this.#sent = nothing()
    return () => {
      const now = this.#now()
      // The device works its queue in order.
      const rate = (now - Math.max(since, this.#done)) / workgroups
      if (workgroups > 0) for (const plan of plans) this.#rates.set(plan, rate)
      this.#done = now
    }
  }
}
