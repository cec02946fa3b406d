/**
 * Scratch memory of plans. A first run of the recording notes only which scratch is taken and given back, and when (`ScratchTrace`); then each
 * piece gets a place in a buffer, which others use before, after or beside it (`placePieces`); the second run hands the places out
 * (`PlacedScratch`). So a plan holds little more memory than its commands need at once.
 */
import { GpuError } from './errors.ts'
import { GpuBuffer, type BufferPool } from './pool.ts'

/** Scratch of `bytes` bytes, in use between two moments of the recording. */
export interface Piece {
  bytes: number
  from: number
  to: number
  /** Pieces that must not share a buffer with it while both are in use: WebGPU lets no command write a buffer that it also reads, at any offset. */
  apart: Set<Piece>
}

/** Where a piece lies: in which buffer, and how many bytes from its beginning. */
export interface Place {
  buffer: number
  start: number
}

/** Places begin at multiples of it, so that they can be bound. */
const aligned = 256

/**
 * A place for each piece: the largest first, each in the first gap of the largest buffer that has one for it (after greedy by size, arXiv 2001.03288).
 * @param known sizes of buffers that are there
 * @returns the places, and the sizes of all buffers, the known ones first
 */
export function placePieces(pieces: Piece[], known: number[]): { places: Place[]; sizes: number[] } {
  const buffers = known.map((bytes, index) => ({ index, bytes, held: [] as { piece: Piece; start: number }[] }))
  buffers.sort((a, b) => b.bytes - a.bytes)
  const order = [...pieces.keys()].toSorted((a, b) => pieces[b].bytes - pieces[a].bytes || a - b)
  const places: Place[] = []
  for (const index of order) {
    const piece = pieces[index]
    let start = -1
    let found = buffers.find(({ bytes, held }) => (start = gapFor(piece, bytes, held)) >= 0)
    if (!found) {
      start = 0
      found = { index: buffers.length, bytes: piece.bytes, held: [] }
      buffers.push(found)
      buffers.sort((a, b) => b.bytes - a.bytes)
    }
    found.held.push({ piece, start })
    places[index] = { buffer: found.index, start }
  }
  return { places, sizes: buffers.toSorted((a, b) => a.index - b.index).map(({ bytes }) => bytes) }
}

/** Where a piece fits into a buffer of so many bytes, beside those that are there at the same time; -1 where it does not. */
function gapFor(piece: Piece, bytes: number, held: { piece: Piece; start: number }[]): number {
  const beside = held.filter((h) => h.piece.from <= piece.to && piece.from <= h.piece.to)
  if (beside.some((h) => h.piece.apart.has(piece))) return -1
  let at = 0
  for (const h of beside.toSorted((a, b) => a.start - b.start)) {
    if (h.start - at >= piece.bytes) return at
    at = Math.max(at, h.start + h.piece.bytes)
  }
  return bytes - at >= piece.bytes ? at : -1
}

/** Larger pieces are made to measure in any plan: a power of two could be much room for nothing. */
const mostRounded = 4 * 2 ** 20

/** The room of a piece. @param least where it is given, a power of two and no less than this: plans of about the same sizes have the same places then */
function roomOf(bytes: number, least = 0): number {
  if (least > 0 && bytes <= mostRounded) return Math.max(least, 2 ** Math.ceil(Math.log2(Math.max(1, bytes))))
  return Math.max(1, Math.ceil(bytes / aligned)) * aligned
}

/** The first run: notes lifetimes, and which pieces a command uses together. The buffers that it hands out hold nothing. */
export class ScratchTrace {
  readonly pieces: (Piece & { label: string })[] = []
  readonly #of = new Map<GpuBuffer, Piece>()
  readonly #nothing: GPUBuffer
  readonly #least: number
  #now = 0

  /** @param nothing stands for all buffers @param least of a piece (`roomOf`) */
  constructor(nothing: GPUBuffer, least = 0) {
    this.#nothing = nothing
    this.#least = least
  }

  take(bytes: number, label: string): GpuBuffer {
    const piece = { bytes: roomOf(bytes, this.#least), from: this.#now++, to: Infinity, apart: new Set<Piece>(), label }
    this.pieces.push(piece)
    const buffer = new GpuBuffer(this.#nothing, piece.bytes, label, () => {
      buffer.released = true
      piece.to = this.#now++
    })
    this.#of.set(buffer, piece)
    return buffer
  }

  /** A command uses these buffers, and writes those for which `writes` is true. */
  together(buffers: (GpuBuffer | undefined)[], writes: (index: number) => boolean): void {
    const pieces = buffers.map((buffer) => buffer && this.#of.get(buffer))
    pieces.forEach((one, i) => {
      if (!one || !writes(i)) return
      for (const other of pieces) {
        if (!other || other === one) continue
        one.apart.add(other)
        other.apart.add(one)
      }
    })
  }

  /** @throws GpuError where a piece was not given back: its place could never be used again */
  end(): Piece[] {
    const kept = this.pieces.find(({ to }) => to === Infinity)
    if (kept) throw new GpuError(`scratch '${kept.label}' of a plan is not given back while it is recorded`)
    return this.pieces
  }
}

/** Places the pieces, and adds the buffers that the arena lacks for them. */
export function growArena(pool: BufferPool, pieces: Piece[], arena: GpuBuffer[]): Place[] {
  const known = arena.map(({ bytes }) => bytes)
  const { places, sizes } = placePieces(pieces, known)
  for (const bytes of sizes.slice(known.length)) arena.push(pool.makeScratch(bytes))
  return places
}

/** The second run: hands out the places of the pieces. */
export class PlacedScratch {
  readonly #buffers: GpuBuffer[]
  readonly #least: number
  #next = 0

  /** @param arena buffers that are there; what is missing is made and added @param least as in the first run */
  constructor(pool: BufferPool, pieces: Piece[], arena: GpuBuffer[], least = 0) {
    this.#least = least
    const places = growArena(pool, pieces, arena)
    this.#buffers = places.map(({ buffer, start }, i) => pool.partOf(arena[buffer], start, pieces[i].bytes))
    for (const buffer of this.#buffers) buffer.released = true
  }

  /** @throws GpuError where the first run took something else at this point */
  take(bytes: number, label: string): GpuBuffer {
    const buffer = this.#buffers[this.#next++]
    if (!buffer?.released || buffer.bytes !== roomOf(bytes, this.#least)) {
      throw new GpuError(`a plan takes other scratch the second time it is run: '${label}'`)
    }
    buffer.released = false
    buffer.label = label
    return buffer
  }
}
