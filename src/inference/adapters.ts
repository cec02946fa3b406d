/**
 * Named adapters besides the policy's own: the place that each is loaded at, the requests that use it, and the version that its tokens carry.
 * - A request holds its adapter's place until it ends. An unloaded name is refused at once; its place becomes free when no request holds it.
 * - Files are read while steps continue. The adapter is then installed within one turn of the event loop, between two steps.
 */
import { UserError } from '../common/errors.ts'
import type { PolicyVersion } from '../common/types.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { checkAdapter, checkFinite, rankOf, readAdapter, type Adapter } from '../model/files/peft.ts'
import { AdapterBank } from './adapter-bank.ts'
import { firstNamed, placeOfNone, placeOfPolicy } from './step-rows.ts'
import type { AdapterInfo, AdapterSet } from './types.ts'

interface AdapterLimits {
  /** Maximum number of named adapters, counting those that are unloaded but still used by requests. */
  maxAdapters: number
  /** Maximum rank of an adapter; a multiple of 8. */
  maxRank: number
}

interface Entry {
  info: AdapterInfo
  place: number
  /** Identifies the adapter's keys and values in the cache; changes whenever its weights do. */
  space: number
  users: number
  loaded: boolean
}

/** The adapter of a request. */
export interface HeldAdapter {
  place: number
  /** Version of tokens sampled now. */
  version(): PolicyVersion
  /** Cache space of keys and values computed now. */
  space(): number
  release(): void
}

export class Adapters implements AdapterSet {
  readonly bank: AdapterBank
  readonly #decoder: Decoder
  readonly #limits: AdapterLimits
  readonly #forget: (adapter: string, space: number) => void
  /** Entries by place, counted from `firstNamed`. */
  readonly #places: (Entry | undefined)[] = []
  readonly #named = new Map<string, Entry>()
  readonly #loads = new Map<string, number>()
  #spaces = 0
  #closed = false

  /** @param forget called with an adapter and its current space: cached keys and values of its other spaces are no longer useful */
  constructor(decoder: Decoder, limits: AdapterLimits, forget: (adapter: string, space: number) => void) {
    if (limits.maxRank < 8 || limits.maxRank % 8 !== 0) {
      throw new UserError(`maxAdapterRank is ${limits.maxRank}; it must be a multiple of 8.`)
    }
    this.#decoder = decoder
    this.#limits = limits
    this.#forget = forget
    this.bank = new AdapterBank(decoder)
  }

  list(): AdapterInfo[] {
    return [...this.#named.values()].map(({ info }) => ({ ...info }))
  }

  has(name: string): boolean {
    return this.#named.has(name)
  }

  async load(name: string, path: string, options: { inPlace?: boolean } = {}): Promise<AdapterInfo> {
    this.#checkName(name, options)
    const adapter = await readAdapter(path)
    if (this.#closed) throw new Error('the engine is closed')
    this.#check(adapter)
    // Another load may have finished meanwhile.
    this.#checkName(name, options)
    const entry = this.#named.get(name)
    const place = entry?.place ?? this.#freePlace(name)
    this.bank.write(place, adapter)
    const version = (this.#loads.get(name) ?? 0) + 1
    this.#loads.set(name, version)
    const info = { name, path, rank: rankOf(adapter), version }
    const space = ++this.#spaces
    const made = Object.assign(entry ?? { users: 0, place, loaded: true }, { info, space })
    this.#named.set(name, made)
    this.#places[place - firstNamed] = made
    this.#forget(name, space)
    return { ...info }
  }

  async unload(name: string): Promise<void> {
    const entry = this.#named.get(name)
    if (!entry) throw new UserError(this.#unknown(name))
    this.#named.delete(name)
    entry.loaded = false
    this.#forget(name, ++this.#spaces)
    this.#tidy(entry)
  }

  /**
   * The adapter of a new request: undefined is the policy's own, null is none.
   * @throws UserError for a name that is not loaded
   */
  hold(adapter: string | null | undefined, policy: () => PolicyVersion, none: () => PolicyVersion): HeldAdapter {
    if (adapter === undefined) return { place: placeOfPolicy, version: policy, space: policy, release: () => {} }
    if (adapter === null) return { place: placeOfNone, version: none, space: none, release: () => {} }
    const entry = this.#named.get(adapter)
    if (!entry) throw new UserError(this.#unknown(adapter))
    entry.users++
    const release = () => {
      entry.users--
      this.#tidy(entry)
    }
    return { place: entry.place, version: () => entry.info.version, space: () => entry.space, release }
  }

  /** Called after the base weights have changed. */
  reloaded(): void {
    for (const entry of this.#places) {
      if (!entry) continue
      entry.space = ++this.#spaces
      this.#forget(entry.info.name, entry.space)
    }
  }

  release(): void {
    this.#closed = true
    this.bank.release()
  }

  #checkName(name: string, { inPlace = false }: { inPlace?: boolean }): void {
    if (name === '') throw new UserError('An adapter needs a name.')
    if (this.#named.has(name)) {
      if (inPlace) return
      throw new UserError(`An adapter ${name} has already been loaded: unload it first, or load it in place.`)
    }
    this.#freePlace(name)
  }

  #freePlace(name: string): number {
    const { maxAdapters } = this.#limits
    const place = Array.from({ length: maxAdapters }, (_, i) => i).find((i) => !this.#places[i])
    if (place !== undefined) return place + firstNamed
    const held = this.#places.flatMap((entry) => entry ?? [])
    const names = held.map(({ info, loaded }) => (loaded ? info.name : `${info.name} (until its requests have ended)`))
    throw new UserError(
      maxAdapters === 0
        ? `There is no place for the adapter ${name}: the server was started with --max-loras 0.`
        : `There is no place for the adapter ${name}: at most ${maxAdapters} can be loaded, and there are already ${names.join(', ')}. Unload one.`,
    )
  }

  #check(adapter: Adapter): void {
    const { config, name } = this.#decoder
    checkAdapter(adapter, config, name)
    checkFinite(adapter)
    const { maxRank } = this.#limits
    for (const [path, { r }] of adapter.tensors)
      if (r > maxRank)
        throw new UserError(
          `The adapter ${adapter.dir} has rank ${r} (${path}), but ${maxRank} is the largest that can be loaded.`,
        )
  }

  #tidy(entry: Entry): void {
    if (!entry.loaded && entry.users === 0) this.#places[entry.place - firstNamed] = undefined
  }

  #unknown(name: string): string {
    const names = [...this.#named.keys()]
    const loaded = names.length > 0 ? `loaded are ${names.join(', ')}` : 'none is loaded'
    return `There is no adapter ${JSON.stringify(name.slice(0, 200))}: ${loaded}.`
  }
}
