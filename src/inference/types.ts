/** What a server, or a run, needs of the embedded engine: the one definition that both sides write against. */
import type { Generator, PolicyVersion } from '../common/types.ts'
import type { EngineStats } from './engine.ts'

/** How requests that run are treated while the engine stands still: kept where they are, waited for, or ended. */
export type PauseMode = 'keep' | 'wait' | 'abort'

export interface AdapterInfo {
  name: string
  /** The folder that it was read from. */
  path: string
  rank: number
  /** Counts how often it was loaded under this name: a token's version under it. */
  version: PolicyVersion
}

/** Adapters by name, several in one batch. Loading and unloading go on while requests run. */
export interface AdapterSet {
  list(): AdapterInfo[]
  has(name: string): boolean
  /**
   * Reads a PEFT folder.
   * @param options.inPlace a name that is loaded already takes the new weights, requests that run with it included
   * @throws UserError for a folder that is no adapter of this model, a rank that is too large, a name that is taken, no free place
   */
  load(name: string, path: string, options?: { inPlace?: boolean }): Promise<AdapterInfo>
  /** New requests with it are refused at once; its place is free when its last request has ended. @throws UserError for a name that is not loaded */
  unload(name: string): Promise<void>
}

export interface ServingEngine extends Generator {
  readonly maxLength: number
  readonly adapters: AdapterSet
  stats(): EngineStats
  /** No further step begins. 'wait' resolves when all requests have ended, 'abort' ends them, 'keep' (default) leaves them where they are. New ones wait. */
  pause(mode?: PauseMode): Promise<void>
  resume(): void
  readonly paused: boolean
  /** Forgets cached keys and values that no running request holds. */
  resetPrefixCache(): void
}
