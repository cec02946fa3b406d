/**
 * Scratch of plans. What a plan takes and gives back while it is recorded is seen in a first run that records nothing; then every piece gets a place in a buffer
 * that other pieces use before and after it. Buffers are made to measure, so that plans hold no more than their commands need at once.
 */
import { GpuError } from './errors.ts'
import { GpuBuffer, type BufferPool } from './pool.ts'

/** Scratch of `bytes` bytes that is in use from one moment to another. */
export interface Piece {
  bytes: number
  from: number
  to: number
}

/**
 * Which buffer each piece lies in, so that no two share one at the same time: the largest pieces first, each in the smallest buffer that has room for it
 * (greedy by size, arXiv 2001.03288).
 * @param known sizes of buffers that are there
 * @returns for each piece the index of its buffer, and the sizes of all buffers, the known ones first
 */
export function placePieces(pieces: Piece[], known: number[]): { places: number[]; sizes: number[] } {
  const buffers = known.map((bytes) => ({ bytes, pieces: [] as Piece[] }))
  const order = [...pieces.keys()].toSorted((a, b) => pieces[b].bytes - pieces[a].bytes || a - b)
  const places: number[] = []
  for (const index of order) {
    const piece = pieces[index]
    let best = -1
    for (const [i, { bytes, pieces: others }] of buffers.entries()) {
      if (bytes < piece.bytes || (best >= 0 && bytes >= buffers[best].bytes)) continue
      if (others.every(({ from, to }) => to < piece.from || piece.to < from)) best = i
    }
    if (best < 0) best = buffers.push({ bytes: piece.bytes, pieces: [] }) - 1
    buffers[best].pieces.push(piece)
    places[index] = best
  }
  return { places, sizes: buffers.map(({ bytes }) => bytes) }
}

/**
 * The first run: what `run` takes from the pool, and how long it has it. The buffers that it gets are of no use.
 * @throws GpuError where something is not given back: others could not have its place, and nobody would know when it is free
 */
export function traceScratch(pool: BufferPool, run: () => void): Piece[] {
  const pieces: (Piece & { label: string })[] = []
  const nothing = pool.acquire(16, 'nothing')
  let now = 0
  pool.scratch = {
    take(bytes, label) {
      const piece = { bytes, from: now++, to: Infinity, label }
      pieces.push(piece)
      return new GpuBuffer(nothing.raw, bytes, label, (buffer) => {
        buffer.released = true
        piece.to = now++
      })
    },
  }
  try {
    run()
  } finally {
    pool.scratch = undefined
    nothing.release()
  }
  const kept = pieces.find(({ to }) => to === Infinity)
  if (kept) throw new GpuError(`scratch '${kept.label}' of a plan is not given back while it is recorded`)
  return pieces
}

/**
 * The second run: `run` gets the places of its pieces in `buffers`, to which what is missing is added.
 * @throws GpuError where it takes something else than in the first run
 */
export function placeScratch(pool: BufferPool, pieces: Piece[], buffers: GpuBuffer[], run: () => void): void {
  const known = buffers.map(({ bytes }) => bytes)
  const { places, sizes } = placePieces(pieces, known)
  for (const bytes of sizes.slice(known.length)) buffers.push(pool.makeScratch(bytes))
  let next = 0
  pool.scratch = {
    take(bytes, label) {
      const buffer = buffers[places[next++]]
      if (!buffer?.released || buffer.bytes < bytes) throw new GpuError(`a plan takes other scratch the second time: '${label}'`)
      buffer.released = false
      buffer.label = label
      return buffer
    },
  }
  try {
    run()
  } finally {
    pool.scratch = undefined
    for (const buffer of buffers) buffer.released = true
  }
}
