/** Files of JSON lines, for the rest of src/monitor. */
import {
  closeSync,
  existsSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  readFileSync,
  readSync,
  fstatSync,
  statSync,
  writeSync,
} from 'node:fs'
import { open } from 'node:fs/promises'
import { writeFileAtomic } from '../common/atomic.ts'

/** Syncs a file to disk without blocking the process; does nothing where the file is gone. */
export async function settleFile(path: string): Promise<void> {
  try {
    await using handle = await open(path, 'r+')
    await handle.datasync()
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
}

/**
 * Opens a file of JSON lines for appending. A last line without its line break was cut off by a killed process: it is removed, so
 * that what is appended does not become part of it. The caller closes the descriptor.
 */
export function openForAppend(path: string): number {
  mendTail(path)
  return openSync(path, 'a')
}

/**
 * Appends rows to files, one JSON object for each line: all rows to all files or, where one cannot be written, none at all.
 * @throws the system's error; the files are then unchanged
 */
export function appendRows(files: readonly { fd: number; rows: readonly unknown[] }[], options: { sync?: boolean } = {}): void {
  const sizes = files.map(({ fd }) => fstatSync(fd).size)
  try {
    for (const { fd, rows } of files) {
      for (const row of rows) writeAll(fd, Buffer.from(`${JSON.stringify(row)}\n`))
      if (options.sync) fsyncSync(fd)
    }
  } catch (error) {
    for (const [i, { fd }] of files.entries()) cutBack(fd, sizes[i])
    throw error
  }
}

/**
 * Appends bytes to a file: all of them, or none where that fails.
 * @throws the system's error
 */
export function appendWhole(path: string, bytes: Uint8Array): void {
  const fd = openSync(path, 'a')
  const { size } = fstatSync(fd)
  try {
    writeAll(fd, bytes)
  } catch (error) {
    cutBack(fd, size)
    throw error
  } finally {
    closeSync(fd)
  }
}

/** Writes all bytes: a disk that runs full takes a part of them before it refuses. */
function writeAll(fd: number, bytes: Uint8Array): void {
  for (let done = 0; done < bytes.length;) done += writeSync(fd, bytes, done)
}

function cutBack(fd: number, size: number): void {
  try {
    ftruncateSync(fd, size)
  } catch {
    // A device cannot be truncated.
  }
}

function mendTail(path: string): void {
  if (!existsSync(path)) return
  const fd = openSync(path, 'r+')
  try {
    let end = fstatSync(fd).size
    const chunk = Buffer.alloc(65536)
    while (end > 0) {
      const start = Math.max(0, end - chunk.length)
      const got = readSync(fd, chunk, 0, end - start, start)
      const newline = chunk.subarray(0, got).lastIndexOf(10)
      if (newline >= 0) {
        end = start + newline + 1
        break
      }
      end = start
    }
    if (end < fstatSync(fd).size) ftruncateSync(fd, end)
  } finally {
    closeSync(fd)
  }
}

/** The text of a file; '' where it is missing or a folder. */
export function textOf(path: string): string {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ? readFileSync(path, 'utf8') : ''
}

/**
 * The complete rows of a file of JSON lines from an offset on, each with its own offset; none if the file is missing or a folder. It is read in pieces,
 * as a file may be larger than the longest string. Lines that are not a JSON object are left out.
 */
export function* jsonLines<T = Record<string, unknown>>(path: string, from = 0): Generator<{ row: T; at: number }> {
  if (!statSync(path, { throwIfNoEntry: false })?.isFile()) return
  for (const { line, at } of linesOf(path, from)) {
    try {
      const row: unknown = JSON.parse(line.toString())
      if (row !== null && typeof row === 'object' && !Array.isArray(row)) yield { row: row as T, at }
    } catch {
      // A killed process cut the line off.
    }
  }
}

/**
 * The lines of a file from an offset on, read in pieces. The bytes of each are valid until the next one is read. Last comes what follows the last line
 * break, mostly nothing.
 */
export function* linesOf(path: string, from: number): Generator<{ line: Buffer; at: number }> {
  const fd = openSync(path, 'r')
  try {
    const chunk = Buffer.alloc(1 << 18)
    let pieces: Buffer[] = []
    let [start, at] = [from, from]
    for (let got = readSync(fd, chunk, 0, chunk.length, at); got > 0; got = readSync(fd, chunk, 0, chunk.length, at)) {
      const bytes = chunk.subarray(0, got)
      let begin = 0
      for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, begin)) {
        const part = bytes.subarray(begin, end)
        yield { line: pieces.length > 0 ? Buffer.concat([...pieces, part]) : part, at: start }
        pieces = []
        begin = end + 1
        start = at + begin
      }
      pieces.push(Buffer.from(bytes.subarray(begin)))
      at += got
    }
    yield { line: Buffer.concat(pieces), at: start }
  } finally {
    closeSync(fd)
  }
}

/** Every complete row of a file of JSON lines. */
export function readJsonLines<T = Record<string, unknown>>(path: string): T[] {
  return Array.from(jsonLines<T>(path), ({ row }) => row)
}

/**
 * Removes rows from a file of JSON lines, atomically. Reads it twice, as it may be too large to be held.
 * @param keeps whether a row stays
 * @returns how many rows were removed; 0 for a missing file
 */
export function dropRows<T = Record<string, unknown>>(path: string, keeps: (row: T) => boolean): number {
  let count = 0
  for (const { row } of jsonLines<T>(path)) if (!keeps(row)) count++
  if (count > 0) writeFileAtomic(path, keptLines(path, keeps))
  return count
}

function* keptLines<T>(path: string, keeps: (row: T) => boolean): Generator<string> {
  for (const { row } of jsonLines<T>(path)) if (keeps(row)) yield `${JSON.stringify(row)}\n`
}

/** Removes the rows of later steps from a file of JSON lines with a `step`, atomically. @returns as `dropRows` */
export const dropLaterRows = (path: string, step: number): number => dropRows<{ step: number }>(path, (row) => row.step <= step)
