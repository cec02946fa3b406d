/** The trained part of a decoder: refreshes working copies from their masters, and reads the adapter. */
import type { Parameter, ParameterStore } from '../../autograd/parameters.ts'
import { follows, type BufferRange } from '../../gpu/gpu.ts'
import { liesBelow, type Weight } from '../../kernels/common/weight.ts'
import { gainFromOne } from '../../kernels/norm/norm.ts'
import { roundWeight } from '../../kernels/optimizer/optimizer.ts'
import { normsOf, projectionsOf, type Decoder } from './decoder.ts'
import type { LoraPair } from '../files/peft.ts'

/** After an optimizer step on a wholly trained model: writes the working copies of all matrices from their masters, and gains that are no masters themselves. */
export function refreshWeights(decoder: Decoder): void {
  const { store, gpu } = decoder
  if (!store) return
  for (const { weight, master, row, rows } of stretchesOf(store, trainedMatrices(decoder)))
    roundWeight(gpu, master, weight, row, rows)
  for (const { gain, fromOne, trained, channels } of [...decoder.layers.flatMap(normsOf), decoder.norm])
    if (fromOne && trained) gainFromOne(gpu, store.value(trained.gain), gain, channels)
}

/** Rows of a weight and where their master lies. */
interface Stretch {
  weight: Weight
  master: BufferRange
  row: number
  rows: number
}

/** Covers all rows of all matrices. Matrices that follow each other in both master and copy become one stretch: a narrow model's single matrix is too little for a dispatch. */
function stretchesOf(store: ParameterStore, matrices: { weight: Weight; trained: Parameter }[]): Stretch[] {
  const stretches: Stretch[] = []
  for (const { weight, trained } of matrices) {
    for (const piece of trained.pieces) {
      const master = store.value(trained, piece)
      const last = stretches.at(-1)
      // Only a piece that is its whole weight can join.
      if (last && piece.rows === weight.rows && liesBelow(last.weight, weight) && follows(last.master, master)) {
        last.rows += weight.rows
        last.weight = { ...last.weight, rows: last.weight.rows + weight.rows }
        last.master = { ...last.master, bytes: last.master.bytes + master.bytes }
      } else stretches.push({ weight, master, row: piece.row, rows: piece.rows })
    }
  }
  return stretches
}

/** The dtype in which each matrix of a fully trained model runs, by name: only matrices that bf16 holds exactly, or that are rounded to it, run in bf16. */
export const matrixDtypes = (decoder: Decoder): Map<string, 'bf16' | 'f32'> =>
  new Map(trainedMatrices(decoder).map(({ weight, trained }) => [trained.name, weight.bf16 ? 'bf16' : 'f32']))

function trainedMatrices(decoder: Decoder): { weight: Weight; trained: Parameter }[] {
  const found = new Map<Weight, Parameter>()
  const note = (m: { weight: Weight; trained?: { weight: Parameter } }) => m.trained && found.set(m.weight, m.trained.weight)
  note(decoder.embedding)
  for (const projection of decoder.layers.flatMap((layer) => projectionsOf(layer).flat())) note(projection)
  note(decoder.head)
  return [...found].map(([weight, trained]) => ({ weight, trained }))
}

/** Path and factors of every adapter matrix, as they are now, for writing an adapter folder. */
export async function readLora(decoder: Decoder): Promise<Map<string, LoraPair>> {
  const pairs = new Map<string, LoraPair>()
  for (const layer of decoder.layers) {
    for (const p of projectionsOf(layer).flat()) {
      // Two projections may share the adapter of the matrix that files have for both.
      if (!p.lora || pairs.has(p.name)) continue
      const { store, a, b } = p.lora
      const [A, B] = [await store.read(a), await store.read(b.whole ?? b)]
      pairs.set(p.name, { A, B, r: p.lora.a.shape[0] })
    }
  }
  return pairs
}
