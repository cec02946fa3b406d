/**
 * Scratch memory of plans. A recording runs twice. The first run only notes which scratch buffers are taken and given back, and when
 * (`ScratchTrace`). Each of these pieces then gets a place in a buffer, which it shares with others before, after or beside it (`placePieces`). The
 * second run hands the places out (`PlacedScratch`). So a plan holds little more memory than its commands need at any one time.
 */
import { GpuError } from './errors.ts'
import { GpuBuffer, type BufferPool } from './pool.ts'

/** Scratch of `bytes` bytes, in use between two moments of the recording. */
export interface Piece {
  bytes: number
  from: number
  to: number
  /**
   * Pieces that must not share a buffer with this one while both are in use: WebGPU does not let a command write a buffer that it also reads, at any
   * offset.
   */
  apart: Set<Piece>
}

/** Where a piece lies: the index of the buffer, and the offset in it in bytes. */
export interface Place {
  buffer: number
  start: number
}

/** Alignment of places in bytes, required for bindings. */
const aligned = 256

/**
 * Assigns a place to each piece, the largest piece first: the first gap that fits, in the largest buffer that has one ("greedy by size" of arXiv
 * 2001.03288, adapted).
 * @param known sizes of the existing buffers
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

/** Offset at which a piece fits into a buffer of `bytes` bytes beside the pieces in use at the same time; -1 if it does not fit. */
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

/** Pieces larger than this are never rounded to a power of two, which could waste much memory. */
const mostRounded = 4 * 2 ** 20

/**
 * Bytes reserved for a piece.
 * @param least if given, small pieces take a power of two that is at least this, so that plans of similar sizes get the same places
 */
function roomOf(bytes: number, least = 0): number {
  if (least > 0 && bytes <= mostRounded) return Math.max(least, 2 ** Math.ceil(Math.log2(Math.max(1, bytes))))
  return Math.max(1, Math.ceil(bytes / aligned)) * aligned
}

/**
 * The first run: notes the lifetimes of pieces, and which pieces a command uses together. The buffers that it hands out have no memory of their own.
 */
export class ScratchTrace {
  readonly pieces: (Piece & { label: string })[] = []
  readonly #of = new Map<GpuBuffer, Piece>()
  readonly #nothing: GPUBuffer
  readonly #least: number
  #now = 0

  /**
   * @param nothing stands in for all buffers
   * @param least as in `roomOf`
   */
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

  /** Called when a command uses these buffers and writes those for which `writes` is true. */
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

  /** @throws GpuError if a piece was not given back, since its place could never be used again */
  end(): Piece[] {
    const kept = this.pieces.find(({ to }) => to === Infinity)
    if (kept) throw new GpuError(`scratch '${kept.label}' of a plan was not given back while the plan was recorded`)
    return this.pieces
  }
}

/** Places the pieces, and adds buffers to the arena as needed. */
export function growArena(pool: BufferPool, pieces: Piece[], arena: GpuBuffer[]): Place[] {
  const known = arena.map(({ bytes }) => bytes)
  const { places, sizes } = placePieces(pieces, known)
  for (const bytes of sizes.slice(known.length)) arena.push(pool.makeScratch(bytes))
  return places
}

/**
 * Runs `grow`. If it fails, gives back what it has added to the arena: a buffer that the device refused looks like any other, and smaller plans would
 * use it.
 */
export async function orAsBefore(pool: BufferPool, arena: GpuBuffer[], grow: () => Promise<void>): Promise<void> {
  const before = new Set(arena)
  try {
    await grow()
  } catch (error) {
    const added = arena.filter((buffer) => !before.has(buffer))
    arena.splice(0, Infinity, ...arena.filter((buffer) => before.has(buffer)))
    pool.returnArena(added)
    throw error
  }
}

/** The second run: hands out the places of the pieces. */
export class PlacedScratch {
  readonly #buffers: GpuBuffer[]
  readonly #least: number
  #next = 0

  /**
   * @param arena existing buffers; missing ones are created and added
   * @param least as in the first run
   */
  constructor(pool: BufferPool, pieces: Piece[], arena: GpuBuffer[], least = 0) {
    this.#least = least
    const places = growArena(pool, pieces, arena)
    this.#buffers = places.map(({ buffer, start }, i) => pool.partOf(arena[buffer], start, pieces[i].bytes))
    for (const buffer of this.#buffers) buffer.released = true
  }

  /** @throws GpuError if the first run took something else at this point */
  take(bytes: number, label: string): GpuBuffer {
    const buffer = this.#buffers[this.#next++]
    if (!buffer?.released || buffer.bytes !== roomOf(bytes, this.#least)) {
      throw new GpuError(`a plan takes different scratch buffers the second time it is run: '${label}'`)
    }
    buffer.released = false
    buffer.label = label
    return buffer
  }
}
