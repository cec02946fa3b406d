/**
 * Checks attention's backward pass on matrix units against float32 on the device at hand. Its kernels ask more of a driver than products do
 * (fragments straight from a buffer, half a dozen barriers per iteration), few drivers have been seen to run them, and a wrong gradient shows late,
 * if ever.
 */
import { Random } from '../../common/random.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { attention, attentionBackward, type HeadShape } from './attention.ts'
import { trustUnits, unitsOf } from './units.ts'

/**
 * A prompt and two sequences after it, each of which ends within a tile: some iterations and tiles are masked in part, some fully, some not at all.
 */
const [prompt, first, second] = [70, 33, 49]
const rows = prompt + first + second
/** Limit of ||x - y|| / ||y|| for each gradient: rounding to f16 gives 1e-3, a wrong tile far more. */
const bound = 1e-2

/**
 * Keeps attention's backward pass on matrix units if the device is seen to compute it correctly. Otherwise it stays in float32, and a process warning
 * says so.
 */
export async function holdUnits(gpu: Gpu, shape: HeadShape, most = bound): Promise<void> {
  const error = await checkUnits(gpu, shape, most)
  if (error === undefined || error <= most) return
  process.emitWarning(
    `On ${gpu.facts.name} attention's gradients on matrix units are off float32's by ${error.toPrecision(2)} of their size, so attention stays in float32; products run on matrix units all the same. ` +
      "Please report it, with what 'node cli.js doctor' prints.",
  )
}

/**
 * Runs a packed batch both ways. From then on attention runs on matrix units only if the results agree.
 * @param most limit of ||x - y|| / ||y|| for each gradient
 * @returns the largest of the three errors; undefined if matrix units do not take these heads anyway
 */
export async function checkUnits(gpu: Gpu, shape: HeadShape, most = bound): Promise<number | undefined> {
  trustUnits(gpu, true)
  if (!unitsOf(gpu, 'q', shape) || !unitsOf(gpu, 'kv', shape)) return undefined
  const { heads, kvHeads, headDim } = shape
  const [ofQ, ofK] = [rows * heads * headDim, rows * kvHeads * headDim]
  const random = new Random(1)
  const held: GpuBuffer[] = []
  const upload = (data: Float32Array | Uint32Array): GpuBuffer => {
    held.push(gpu.upload(data, 'check of matrix units'))
    return held.at(-1)!
  }
  const normals = (length: number, scale = 1): GpuBuffer => upload(Float32Array.from({ length }, () => random.normal() * scale))
  const room = (length: number): GpuBuffer => upload(new Float32Array(length))
  try {
    const [q, k, v, dO] = [normals(ofQ, 2), normals(ofK), normals(ofK), normals(ofQ)]
    const [o, lse, soft] = [room(ofQ), room(rows * heads), room(rows * heads * 2)]
    const [dq, dk, dv] = [room(ofQ), room(ofK), room(ofK)]
    const t = { q, k, v, dO, ...packed(upload), o, lse, soft, dq, dk, dv }
    attention(gpu, t, rows, shape, { neighbours: true })
    const gradients = async (): Promise<Float32Array[]> => {
      attentionBackward(gpu, t, rows, shape)
      return [await gpu.readF32(dq, ofQ), await gpu.readF32(dk, ofK), await gpu.readF32(dv, ofK)]
    }
    const got = await gradients()
    trustUnits(gpu, false)
    const want = await gradients()
    const error = Math.max(...want.map((values, i) => distance(got[i], values)))
    // With an error of NaN this is false.
    trustUnits(gpu, error <= most)
    return error
  } finally {
    for (const buffer of held) buffer.release()
  }
}

/** The batch: where each row's keys are, and after which row nobody sees it (common.wgsl, key_ends.wgsl). */
function packed(upload: (data: Uint32Array) => GpuBuffer): { info: GpuBuffer; keyEnd: GpuBuffer } {
  const info = new Uint32Array(rows * 4)
  const keyEnd = new Uint32Array(rows)
  for (let row = 0; row < rows; row++) {
    const [own, end] = row < prompt ? [0, rows] : row < prompt + first ? [prompt, prompt + first] : [prompt + first, rows]
    const shared = row < prompt ? 0 : prompt
    info.set([0, shared, own, shared + row - own], row * 4)
    keyEnd[row] = end
  }
  return { info: upload(info), keyEnd: upload(keyEnd) }
}

function distance(got: Float32Array, want: Float32Array): number {
  let [apart, size] = [0, 0]
  for (let i = 0; i < want.length; i++) {
    apart += (got[i] - want[i]) ** 2
    size += want[i] ** 2
  }
  return Math.sqrt(apart / size)
}
