/** Tables of tile sizes in the user's cache, one for each GPU adapter and driver: `~/.cache/dawn-rl/tune.json`, or under XDG_CACHE_HOME. */
import { accessSync, constants, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { writeFileAtomic } from '../../common/atomic.ts'
import { cacheFolder } from '../../common/cache.ts'
import { messageOf, UserError } from '../../common/errors.ts'
import { makeFolder } from '../../common/folders.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import { cpuLanes } from '../common/lanes.ts'
import type { Tiles } from './tiles.ts'

const version = 1

interface TuneFile {
  version: number
  adapters: Record<string, { tiles: Partial<Tiles>; date: string }>
}

function tunePath(): string {
  return join(cacheFolder(), 'tune.json')
}

/** Throws UserError if the cache cannot be written. To be called before a minute is spent on measuring. */
export function checkTunePath(): void {
  const dir = dirname(tunePath())
  try {
    makeFolder(dir)
    accessSync(dir, constants.W_OK)
  } catch (error) {
    throw unkept(dir, error)
  }
}

const unkept = (dir: string, error: unknown) =>
  new UserError(`What is measured cannot be kept in ${dir}: ${messageOf(error)}. Set XDG_CACHE_HOME to another folder.`)

/** Identifies the GPU adapter and its driver: a new version of either is tuned again, and so is a software driver with 512-bit vectors. */
export function tuneKey(gpu: Gpu): string {
  const { vendor, architecture, device, description } = gpu.device.adapterInfo
  return [vendor, architecture, device, description, ...(cpuLanes(gpu).WIDE ? ['512 bits'] : [])].join(' | ')
}

/** What `tune` found for this GPU adapter. Undefined if it has not run, if the file is damaged, and with DAWN_RL_TUNE=0. */
export function readTuned(gpu: Gpu): Partial<Tiles> | undefined {
  if (process.env.DAWN_RL_TUNE === '0') return undefined
  return readFile().adapters[tuneKey(gpu)]?.tiles
}

/** Stores tiles for this GPU adapter, and keeps those of other adapters. @returns the file's path @throws UserError on a full disk */
export function writeTuned(gpu: Gpu, tiles: Partial<Tiles>): string {
  const path = tunePath()
  const file = readFile()
  file.adapters[tuneKey(gpu)] = { tiles, date: new Date().toISOString().slice(0, 10) }
  try {
    makeFolder(dirname(path))
    writeFileAtomic(path, `${JSON.stringify(file, undefined, 2)}\n`)
  } catch (error) {
    throw unkept(dirname(path), error)
  }
  return path
}

/** An unreadable file counts as none, since only speed depends on it. */
function readFile(): TuneFile {
  try {
    const file = JSON.parse(readFileSync(tunePath(), 'utf8')) as TuneFile
    if (file.version === version && typeof file.adapters === 'object' && file.adapters !== null) return file
  } catch {
    // none there, or damaged
  }
  return { version, adapters: {} }
}
