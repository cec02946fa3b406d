/**
 * Reads files of JSON lines in chunks: they may be large, may grow, and may end in an incomplete line. Only lines with a line break count; the rest is
 * still being written, or was cut off.
 */
import { closeSync, constants, lstatSync, openSync, readFileSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'

const chunkBytes = 1 << 18
/** Files up to this size are read whole. */
const smallBytes = 1 << 20
/** Longer lines are skipped, but counted. */
const longestLine = 64 << 20
/** Links are not followed, so that only files in the folder are shown. */
const flags = constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0)

/** How many bytes before the last read position are compared to recognise a new file with the same inode number (these are reused). */
const tailBytes = 256

/** The identity of the file that was read. A different file, or one that shrank, is read from the start. */
interface FileStamp {
  ino: number
  size: number
  mtimeMs: number
}

/** Opens a file for reading; null where there is none (or a link). */
export async function openFile(path: string): Promise<FileHandle | null> {
  try {
    return await open(path, flags)
  } catch {
    return null
  }
}

/** A small file as text; null where it is missing or larger than 4 MiB. */
export async function readSmall(path: string): Promise<string | null> {
  await using file = await openFile(path)
  if (!file) return null
  const stat = await file.stat()
  return stat.isFile() && stat.size <= 4 << 20 ? await file.readFile('utf8') : null
}

/**
 * The lines of a file from an offset on. The bytes are valid until the next line is read.
 * @param from where to begin: the start of a line
 * @param size where to stop, even if the file grows meanwhile
 * @returns `line` is null where it is longer than `longestLine`; `next`: the offset of the next line
 */
export async function* linesOf(
  file: FileHandle,
  from: number,
  size: number,
): AsyncGenerator<{ line: Buffer | null; start: number; next: number }> {
  const chunk = Buffer.alloc(Math.min(chunkBytes, Math.max(1, size - from)))
  let pieces: Buffer[] = []
  let [held, start, at] = [0, from, from]
  while (at < size) {
    const { bytesRead } = await file.read(chunk, 0, Math.min(chunk.length, size - at), at)
    if (bytesRead === 0) return
    let begin = 0
    for (let end = chunk.indexOf(10, begin); end >= 0 && end < bytesRead; end = chunk.indexOf(10, begin)) {
      const part = chunk.subarray(begin, end)
      const next = at + end + 1
      const long = held + part.length > longestLine
      yield { line: long ? null : pieces.length > 0 ? Buffer.concat([...pieces, part]) : part, start, next }
      pieces = []
      ;[held, start, begin] = [0, next, end + 1]
    }
    const rest = chunk.subarray(begin, bytesRead)
    held += rest.length
    if (held > longestLine) pieces = []
    else if (rest.length > 0) pieces.push(Buffer.from(rest))
    at += bytesRead
  }
}

/** A line parsed as an object; null where it is none. */
export function parseRow<T extends object>(line: Buffer | null): T | null {
  if (!line || line.length === 0) return null
  try {
    const value: unknown = JSON.parse(line.toString('utf8'))
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as T) : null
  } catch {
    return null
  }
}

/** The line at an offset of a file as an object; null where it is none. */
export async function rowAt<T extends object>(path: string, start: number): Promise<T | null> {
  await using file = await openFile(path)
  if (!file) return null
  for await (const { line } of linesOf(file, start, (await file.stat()).size)) return parseRow<T>(line)
  return null
}

/** Data built from a file line by line, and continued when the file has grown. */
export abstract class GrowingFile {
  readonly path: string
  #stamp: FileStamp | undefined
  #read = 0
  /** As a string, since a slice of a buffer would keep the whole buffer alive. */
  #tail = ''
  #busy: Promise<boolean> | undefined

  constructor(path: string) {
    this.path = path
  }

  /** Reads new lines. Concurrent calls share one read. @returns whether the file exists and can be read */
  refresh(): Promise<boolean> {
    this.#busy ??= this.#refresh().finally(() => (this.#busy = undefined))
    return this.#busy
  }

  /** Forgets everything, as the file was replaced. */
  protected abstract reset(): void
  /** A line of the file. `start`: its offset. */
  protected abstract take(line: Buffer | null, start: number): void

  async #refresh(): Promise<boolean> {
    const now = lstatSync(this.path, { throwIfNoEntry: false })
    if (!now?.isFile()) {
      if (this.#stamp) this.#forget()
      return false
    }
    const { ino, size, mtimeMs } = now
    const known = this.#stamp
    if (known && known.ino === ino && known.size === size && known.mtimeMs === mtimeMs) return true
    // A file that has changed without growing was rewritten.
    if (known && (known.ino !== ino || size <= known.size)) this.#forget()
    const isOpen = size <= smallBytes ? this.#takeSmall() : await this.#takeLarge(size)
    // A file that cannot be opened (another user's, or one that was just removed) counts as missing: the other runs are shown.
    if (isOpen) this.#stamp = { ino, size, mtimeMs }
    else this.#forget()
    return isOpen
  }

  /** Synchronous: with promises, reading thousands of small files would take ten times as long. */
  #takeSmall(): boolean {
    let fd: number
    try {
      fd = openSync(this.path, flags)
    } catch {
      return false
    }
    try {
      const bytes = readFileSync(fd)
      if (tailOf(bytes, this.#read) !== this.#tail) this.#forget()
      for (let end = bytes.indexOf(10, this.#read); end >= 0; end = bytes.indexOf(10, this.#read)) {
        this.take(bytes.subarray(this.#read, end), this.#read)
        this.#read = end + 1
      }
      this.#tail = tailOf(bytes, this.#read)
      return true
    } finally {
      closeSync(fd)
    }
  }

  async #takeLarge(size: number): Promise<boolean> {
    await using file = await openFile(this.path)
    if (!file) return false
    const tail = async (): Promise<string> => {
      const begin = Math.max(0, this.#read - tailBytes)
      const { buffer, bytesRead } = await file.read(Buffer.alloc(this.#read - begin), 0, this.#read - begin, begin)
      return buffer.toString('latin1', 0, bytesRead)
    }
    if ((await tail()) !== this.#tail) this.#forget()
    for await (const { line, start, next } of linesOf(file, this.#read, size)) {
      this.take(line, start)
      this.#read = next
    }
    this.#tail = await tail()
    return true
  }

  #forget(): void {
    this.#stamp = undefined
    this.#read = 0
    this.#tail = ''
    this.reset()
  }
}

const tailOf = (bytes: Buffer, end: number): string => bytes.toString('latin1', Math.max(0, end - tailBytes), end)
