/** Where a model's matrices and vectors lie on the GPU: those of one input side by side, where the kernels can read them so (kernels/matmul/group.ts). */
import type { BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { allocateTogether, writeWeight, type Weight } from '../../kernels/common/weight.ts'
import { allocateBlocks, allocateRooms, writeBlocks } from '../../kernels/quantised/quantised.ts'
import type { Matrix } from './quantise.ts'

export class Placement {
  readonly #gpu: Gpu
  /** What was allocated, for whoever releases it. */
  readonly #owned: (Weight | GpuBuffer)[]
  /** For each group of modules, the room that all layers share for the widened values of matrices in blocks. */
  readonly #rooms = new Map<string, Weight[]>()

  constructor(gpu: Gpu, owned: (Weight | GpuBuffer)[]) {
    this.#gpu = gpu
    this.#owned = owned
  }

  /** Weights with these values, side by side where they can be. */
  matrices(names: string[], matrices: Matrix[]): Weight[] {
    const alike = matrices.every((m) => kindOf(m) === kindOf(matrices[0]) && m.shape[1] === matrices[0].shape[1])
    const sets = alike ? [matrices] : matrices.map((m) => [m])
    const weights = sets.flatMap((set) => this.#room(names, matrices, set))
    matrices.forEach((matrix, i) => {
      if ('format' in matrix) writeBlocks(this.#gpu, weights[i].blocks!, matrix.data)
      else writeWeight(this.#gpu, weights[i], matrix.data)
    })
    return weights
  }

  /** Room for `set`, some of `all`, whose modules have `names`. */
  #room(names: string[], all: Matrix[], set: Matrix[]): Weight[] {
    const parts = set.map((m) => ({ label: `${names[all.indexOf(m)]}.weight`, rows: m.shape[0] }))
    const columns = set[0].shape[1]
    const blocks = set.filter((m) => 'format' in m)
    if (blocks.length === 0) {
      const { weights, owned } = allocateTogether(this.#gpu, parts, columns, kindOf(set[0]) === 'bf16')
      this.#owned.push(...owned)
      return weights
    }
    // Room for the widened values: one for these modules of all layers.
    const shared = parts.map(({ label, rows }) => ({ label: `values of ${label.split('.').slice(3).join('.')}`, rows }))
    const key = shared.map(({ label }) => label).join()
    let rooms = this.#rooms.get(key)
    if (!rooms) {
      const made = allocateRooms(this.#gpu, shared, columns)
      this.#owned.push(...made.owned)
      this.#rooms.set(key, (rooms = made.rooms))
    }
    return blocks.map(({ format }, i) => {
      const weight = allocateBlocks(this.#gpu, parts[i].label, rooms[i], format)
      this.#owned.push(weight.blocks!.storage)
      return weight
    })
  }

  /** Vectors in one buffer, each where it can be bound by itself. */
  vectors(vectors: Float32Array[], label: string): BufferRange[] {
    const offsets = [0]
    for (const { length } of vectors) offsets.push(offsets.at(-1)! + Math.ceil(length / 64) * 64)
    const joined = new Float32Array(offsets.at(-1)!)
    vectors.forEach((vector, i) => joined.set(vector, offsets[i]))
    const buffer = this.#gpu.upload(joined, label, { exact: true })
    this.#owned.push(buffer)
    return vectors.map(({ length }, i) => ({ buffer, offset: offsets[i] * 4, bytes: length * 4 }))
  }
}

const kindOf = (matrix: Matrix): string => ('format' in matrix ? 'blocks' : matrix.dtype)
