/** Plans: commands that are recorded once and submitted repeatedly, and the counts that they leave open (size.ts). */
import type { Command } from './commands.ts'
import { GpuError } from './errors.ts'
import type { GpuBuffer, GpuTexture } from './pool.ts'
import type { Size, Variable } from './size.ts'

/** Recorded commands. What changes between replays is stored in buffers, or is an open count. */
export interface Plan {
  commands: Command[]
  /** Scratch that belongs to the plan: what its commands took from the pool and released. */
  arena: GpuBuffer[]
  /** Textures into which its commands copy. */
  textures: Set<GpuTexture>
  /** Positions in `commands`, ascending, at which other commands may come in between (`gpu.cut`). */
  cuts: number[]
  openings: Openings
}

export const emptyPlan = (): Plan => ({ commands: [], arena: [], textures: new Set(), cuts: [], openings: new Openings() })

/** The places in a plan's commands that still need a value. */
class Openings {
  readonly variables = new Map<string, { variable: Variable; places: { size: Size; put: (value: number) => void }[] }>()

  get none(): boolean {
    return this.variables.size === 0
  }

  /** @throws GpuError if a variable of this name has another capacity */
  add(size: Size, put: (value: number) => void): void {
    const { variable } = size
    const known = this.variables.get(variable.name)
    if (!known) this.variables.set(variable.name, { variable, places: [{ size, put }] })
    else if (known.variable.capacity === variable.capacity) known.places.push({ size, put })
    else
      throw new GpuError(`a plan uses two capacities of '${variable.name}': ${known.variable.capacity} and ${variable.capacity}`)
  }
}

/**
 * Sets the open counts in a plan's commands, in place.
 * @throws GpuError for a value that is missing, or larger than its capacity
 */
export function fill(plan: Plan, values: Record<string, number>): void {
  for (const [name, { variable, places }] of plan.openings.variables) {
    const value = values[name]
    if (value === undefined) throw new GpuError(`a plan is replayed without a value for '${name}'`)
    if (!(value <= variable.capacity)) throw new GpuError(`a plan for ${variable.capacity} '${name}' is replayed with ${value}`)
    for (const { size, put } of places) put(size.at(value))
  }
}

/** Whether a command of a plan has nothing to do. */
export function isEmpty(command: Command): boolean {
  if ('kernel' in command) return command.workgroups.includes(0)
  if ('clear' in command) return false
  return 'texture' in command ? command.size[1] === 0 : command.bytes === 0
}
