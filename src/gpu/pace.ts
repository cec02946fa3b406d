/**
 * How much of a plan goes out in one submit on a GPU. Operating systems end a submit that takes too long, and the device is lost: Linux's amdgpu
 * after 10 s, Intel's xe after 5 s, and others have limits too. A whole micro-batch can take that long on a weak GPU, or with a large model on any
 * GPU. So a plan is sent in submits of about `aimed` ms, judged by how long it took before. Drivers watch each submit, not the queue, so
 * nothing waits between submits. Results do not depend on any of this.
 */
import type { Command } from './commands.ts'
import type { Plan } from './plan.ts'

/** Milliseconds that a submit should take: a tenth of what systems allow, because the workgroups of a plan differ in cost. */
const aimed = 500
/** Commands per submit until the plan's duration is known: one layer or less. */
const unknown = 16

/** What was sent since the last wait began. */
interface Sent {
  plans: Set<Plan>
  workgroups: number
  /** When the first of it was sent. */
  since: number
}

const nothing = (): Sent => ({ plans: new Set(), workgroups: 0, since: Infinity })

/** Commands other than dispatches count as one workgroup. */
const workgroupsOf = (command: Command): number => ('kernel' in command ? command.workgroups.reduce((a, b) => a * b, 1) : 1)

export class Pace {
  /**
   * Milliseconds per workgroup, from the last two waits for the plan; the larger one counts. If two waits are seen to end together, as after the process
   * was stopped for a while, the second one seems to have taken no time.
   */
  readonly #rates = new WeakMap<Plan, [number, number]>()
  readonly #now: () => number
  #sent = nothing()
  /** When the last wait ended. */
  #done = 0

  /** @param now milliseconds of a clock */
  constructor(now = () => performance.now()) {
    this.#now = now
  }

  /**
   * Called before a plan is replayed.
   * @returns called after each command: whether the submit should end with it
   */
  begin(plan: Plan): (command: Command) => boolean {
    this.#sent.plans.add(plan)
    const rates = this.#rates.get(plan)
    const rate = rates && Math.max(...rates)
    let [commands, workgroups] = [0, 0]
    return (command) => {
      commands++
      workgroups += workgroupsOf(command)
      if (rate === undefined ? commands < unknown : workgroups * rate < aimed) return false
      commands = workgroups = 0
      return true
    }
  }

  /** Called when a submit goes out. */
  sent(commands: Command[]): void {
    this.#sent.since = Math.min(this.#sent.since, this.#now())
    this.#sent.workgroups += commands.reduce((sum, command) => sum + workgroupsOf(command), 0)
  }

  /**
   * Called when a wait for everything sent so far begins.
   * @returns called when it is over
   */
  wait(): () => void {
    const { plans, workgroups, since } = this.#sent
    this.#sent = nothing()
    return () => {
      const now = this.#now()
      // The device executes its queue in order.
      const rate = (now - Math.max(since, this.#done)) / workgroups
      if (workgroups > 0) for (const plan of plans) this.#rates.set(plan, [this.#rates.get(plan)?.[1] ?? rate, rate])
      this.#done = now
    }
  }
}
