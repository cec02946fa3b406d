/**
 * Reads the tokens of steps in flight back. Where steps are begun ahead of the host, the tokens of several steps are read together, as a block: the device
 * goes from one step to the next, and the host wakes once a block.
 */
import type { Sampled } from './sampler.ts'
import type { StepRows } from './step-rows.ts'
import type { StepCommands } from './step.ts'

export class ReadBlocks {
  readonly #commands: StepCommands
  readonly #size: number
  #open: ReturnType<typeof opened> | undefined

  /** @param size steps of a block at most; 1 reads each step by itself */
  constructor(commands: StepCommands, size: number) {
    this.#commands = commands
    this.#size = size
  }

  /** Whether there are steps that nobody waits for yet: `close` reads them. */
  get isOpen(): boolean {
    return this.#open !== undefined
  }

  /** Sends the step that was just recorded. Resolves with its tokens once its block has been read. To be called before its draws count as pending. */
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
  // Its steps get its error; a device that is lost while the first step is sent leaves a block without steps.
  all.promise.catch(() => {})
  return { steps: 0, rows: 0, all }
}

/** Whether somebody waits for a token of this step: it is a request's last, or the first of a stream. */
function isDue({ sampled }: StepRows): boolean {
  return sampled.some(
    ({ sequence, target }) =>
      target === undefined && (sequence.drawn + 1 >= sequence.sampling.max_tokens || (sequence.drawn === 0 && sequence.streams)),
  )
}
