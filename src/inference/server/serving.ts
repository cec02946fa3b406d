/** An embedded engine as a server takes it. */
import { UserError } from '../../common/errors.ts'
import type { Engine } from '../engine.ts'
import type { AdapterSet, ServingEngine } from '../types.ts'

/** No adapters: those of an engine that was made without room for any. */
export const noAdapters: AdapterSet = {
  list: () => [],
  has: () => false,
  load: () => Promise.reject(new UserError('This engine takes no adapters beside the policy.')),
  unload: () => Promise.reject(new UserError('This engine has no adapters beside the policy.')),
}

/** The engine itself, with what it lacks filled in. */
export function servingEngine(engine: Engine): ServingEngine {
  const own = engine as Engine & Partial<ServingEngine>
  return {
    get version() {
      return engine.version
    },
    get paused() {
      return engine.paused
    },
    maxLength: engine.maxLength,
    adapters: own.adapters ?? noAdapters,
    generate: (request) => engine.generate(request),
    stats: () => engine.stats(),
    pause: (mode) => engine.pause(mode),
    resume: () => engine.resume(),
    resetPrefixCache: () => engine.resetPrefixCache(),
  }
}
