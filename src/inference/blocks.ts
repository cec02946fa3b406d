/**
 * Reads back the tokens of steps in flight. When steps are started ahead of the host, the tokens of several steps are read together, as a block: the
 * device goes from one step to the next, and the host wakes once per block.
 */
import type { Sampled } from './sampler.ts'
import type { StepRows } from './step-rows.ts'
import type { StepCommands } from './step.ts'

export class ReadBlocks {
  readonly #commands: StepCommands
  readonly #size: number
  #open: ReturnType<typeof opened> | undefined

  /** @param size maximum steps in a block; 1 reads each step by itself */
  constructor(commands: StepCommands, size: number) {
    this.#commands = commands
    this.#size = size
  }

  /** Whether a block is open, which nobody waits for yet: `close` reads it. */
  get isOpen(): boolean {
    return this.#open !== undefined
  }

  /**
   * Sends the step that was just recorded. Resolves with its tokens once its block has been read. Must be called before the step's draws count as
   * pending.
   */
  take(step: StepRows): Promise<Sampled> {
    if (this.#size === 1) return this.#commands.read(step)
    const open = (this.#open ??= opened())
    const place = open.steps++
    open.rows += step.rows
    this.#commands.hold(step)
    if (open.steps === this.#size || isDue(step)) this.close()
    else this.#commands.send()
    return open.all.promise.then((all) => all[place])
  }

  /** Ends the open block and reads it. */
  close(): void {
    const open = this.#open
    if (!open) return
    this.#open = undefined
    this.#commands.readHeld(open.rows).then(open.all.resolve, open.all.reject)
  }
}

function opened() {
  const all = Promise.withResolvers<Sampled[]>()
  // The block's steps get its error. If the device is lost while the first step is sent, the block has no steps, and nobody else handles it.
  all.promise.catch(() => {})
  return { steps: 0, rows: 0, all }
}

/** Whether somebody waits for a token of this step: the last token of a request, or the first of a stream. */
function isDue({ sampled }: StepRows): boolean {
  return sampled.some(
    ({ sequence, target }) =>
      target === undefined && (sequence.drawn + 1 >= sequence.sampling.max_tokens || (sequence.drawn === 0 && sequence.streams)),
  )
}
