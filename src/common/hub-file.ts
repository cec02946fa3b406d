/**
 * Downloads a file of the Hugging Face hub into the cache of the Python libraries: `blobs/<its hash>`, and a link to it in the snapshot's folder.
 * Several processes may download the same file at once. Each writes a file of its own, which takes its place only if its size, and for large files
 * its SHA-256, are those that the hub lists.
 */
import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { copyFile, readdir, rename, rm, stat, symlink } from 'node:fs/promises'
import { hostname } from 'node:os'
import { dirname, join, relative, sep } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { makeFolder } from './folders.ts'
import type { HubBytes } from './hub.ts'
import { isAlive } from './processes.ts'
import { moveTo } from './renames.ts'

/** The hub's entry for a file in its file list, with the hub's names. */
export interface HubEntry {
  path: string
  size: number
  oid?: string
  /** Only for large files. `oid` is the SHA-256. */
  lfs?: { oid: string; size: number }
  xetHash?: string
}

/** The size of the file in bytes. */
export const sizeOf = (entry: HubEntry): number => entry.lfs?.size ?? entry.size

let parts = 0

/**
 * Returns the path of a file in the snapshot's folder, and downloads the file unless its link or its blob exists already.
 * @param open begins the download
 * @param onBytes is told how many bytes have arrived so far
 * @throws Error if the download does not match the hub's entry
 */
export async function fetchHubFile(
  repoFolder: string,
  sha: string,
  entry: HubEntry,
  open: () => Promise<HubBytes | null>,
  onBytes: (bytes: number) => void = () => {},
): Promise<string> {
  const snapshot = join(repoFolder, 'snapshots', sha)
  const link = join(snapshot, entry.path)
  const hash = entry.lfs?.oid ?? entry.xetHash ?? entry.oid ?? ''
  // Path and hash come from the hub and are used in file names. They are checked so that nothing is written elsewhere.
  if (!link.startsWith(snapshot + sep))
    throw new Error(`its list of files has the path ${JSON.stringify(entry.path)}, which is outside its folder`)
  if (!/^\w+$/u.test(hash)) throw new Error(`its list of files has no hash for ${entry.path}`)
  const isWhole = (path: string) => stat(path).then(({ size }) => size === sizeOf(entry), () => false) // prettier-ignore
  if (await isWhole(link)) return link
  const blobs = join(repoFolder, 'blobs')
  const blob = join(blobs, hash)
  makeFolder(blobs)
  makeFolder(dirname(link))
  await removeLeftovers(blobs)
  const part = join(blobs, `${hash}.${hostname()}-${process.pid}-${++parts}.part`)
  try {
    if (!(await isWhole(blob))) {
      await download(entry, open, part, onBytes)
      await rename(part, blob).catch(async (error: unknown) => {
        // Windows cannot replace an open file, and the blob may be open if another process was faster.
        if (!(await isWhole(blob))) throw error
        await rm(part)
      })
    }
    // The link is created elsewhere and moved, so that other processes find either the old or the new one. A system without links gets a copy.
    await symlink(relative(dirname(link), blob), part).catch(() => copyFile(blob, part))
    await moveTo(part, link)
  } finally {
    await rm(part, { force: true })
  }
  return link
}

/** Downloads the file to `part`. Throws if it is not the one in the hub's list. */
async function download(
  entry: HubEntry,
  open: () => Promise<HubBytes | null>,
  part: string,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const blob = await open()
  if (!blob) throw new Error(`it has no ${entry.path}, although its list of files names it`)
  const sha256 = createHash('sha256')
  let bytes = 0
  await pipeline(
    Readable.fromWeb(blob.stream() as ReadableStream<Uint8Array>),
    async function* (chunks: AsyncIterable<Uint8Array>) {
      for await (const chunk of chunks) {
        sha256.update(chunk)
        onBytes((bytes += chunk.length))
        yield chunk
      }
    },
    createWriteStream(part, { flags: 'wx' }),
  )
  if (bytes !== sizeOf(entry)) throw new Error(`received ${bytes} bytes of ${entry.path} instead of ${sizeOf(entry)}: try again`)
  if (entry.lfs && sha256.digest('hex') !== entry.lfs.oid)
    throw new Error(`${entry.path} arrived damaged, its SHA-256 is not the one in the hub's list of files: try again`)
}

/** Removes incomplete downloads of processes of this machine that no longer run. */
async function removeLeftovers(blobs: string): Promise<void> {
  for (const name of await readdir(blobs)) {
    const [, host, pid] = /^\w+\.(.+)-(\d+)-\d+\.part$/u.exec(name) ?? []
    if (host === hostname() && !isAlive(Number(pid))) await rm(join(blobs, name), { force: true })
  }
}
