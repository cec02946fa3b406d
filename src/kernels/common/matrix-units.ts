/**
 * Whether large products run on the adapter's matrix units (matmul/units.ts), which take f16. They do so only if a run asks for it; otherwise
 * arithmetic is float32.
 */
import { valueOfBf16 } from '../../common/bf16.ts'
import { UserError } from '../../common/errors.ts'
import type { MatrixUnit } from '../../gpu/adapter.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { Count } from '../../gpu/size.ts'

/** The largest f16 value. */
const most = 65504
/** The bits of the largest bf16 value below it. */
const mostBits = 0x477f
/** Steps of the depth that a workgroup stages at once; a multiple of the depth of a matrix unit. */
export const KT = 32
/**
 * Factor of gradients, which are small: with it they keep their bits in f16 down to 6e-8, and are clamped beyond 64. A power of two, so otherwise it
 * changes no bit. In training it depends on the loss (`withGradientScale`).
 */
export const gradientScale = 1024

const inUse = new WeakMap<Gpu, MatrixUnit>()
const scales = new WeakMap<Gpu, Count>()

/**
 * Lets large products run on the adapter's matrix units from now on, or with `false` no longer. To be called before weights are uploaded, as these
 * then go to buffers.
 * @throws UserError if the adapter has none that multiply f16 into float32
 */
export function useMatrixUnits(gpu: Gpu, on = true): void {
  inUse.delete(gpu)
  if (!on) return
  const unit = fittingUnit(gpu)
  if (!unit) {
    throw new UserError(
      `${gpu.facts.name} shows no matrix units that multiply f16 into float32 with subgroups of one size. Leave matrix units off (matrix_units = false).`,
    )
  }
  inUse.set(gpu, unit)
}

/** The matrix unit that `useMatrixUnits` takes: the largest whose depth fits KT, 16 x 16 x 16 before 8 x 8 x 8; undefined if none fits. */
export function fittingUnit({ facts: { matrixUnits, subgroupSize, f16 } }: Gpu): MatrixUnit | undefined {
  if (!f16 || subgroupSize === 0) return undefined
  return matrixUnits
    .filter((u) => KT % u.k === 0 && 32 % u.m === 0 && 32 % u.n === 0 && subgroupSize % u.n === 0)
    .toSorted((a, b) => b.m * b.n * b.k - a.m * a.n * a.k)[0]
}

/** The matrix unit that products run on; undefined if they run in float32. */
export const matrixUnitOf = (gpu: Gpu): MatrixUnit | undefined => inUse.get(gpu)

/** What becomes of the largest gradient of a log-probability, at most: room for rows that collect the gradients of 2,000 such tokens. */
const largestScaled = 32

/**
 * The factor of gradients where no gradient of a log-probability is larger than `largest`. A loss is a mean over all tokens of a batch, so with one
 * factor for any batch, the gradients of a batch of many tokens would be rounded to few bits, or to 0.
 */
export function gradientScaleFor(largest: number): number {
  const exponent = Math.floor(-Math.log2(largest))
  return Number.isFinite(exponent) ? largestScaled * 2 ** Math.max(-64, Math.min(64, exponent)) : gradientScale
}

/** Records with `fn` a backward pass whose gradients have this factor on matrix units. */
export function withGradientScale<T>(gpu: Gpu, scale: Count, fn: () => T): T {
  scales.set(gpu, scale)
  try {
    return fn()
  } finally {
    scales.delete(gpu)
  }
}

/** The factor of the gradients that are being recorded. */
export const gradientScaleOf = (gpu: Gpu): Count => scales.get(gpu) ?? gradientScale

/**
 * Checks that a weight is within f16's range, when it is loaded for matrix units.
 * @param data bf16 bits or float32 values
 * @throws UserError naming the weight and the value
 */
export function checkF16Range(label: string, data: Uint16Array | Float32Array): void {
  const at = data instanceof Float32Array ? beyondF16(data) : bitsBeyondF16(data)
  if (at < 0) return
  const value = data instanceof Float32Array ? data[at] : valueOfBf16(data[at])
  throw new UserError(
    `${label} holds ${value}, and f16 ends at ${most}. Leave matrix units off for this model (matrix_units = false).`,
  )
}

/** Index of the first value outside f16's range, or NaN; below 0 if there is none. Each type has its own loop, as a model has billions of values. */
function beyondF16(values: Float32Array): number {
  for (let i = 0; i < values.length; i++) if (!(Math.abs(values[i]) <= most)) return i
  return -1
}

/** The same for bf16 bits: without the sign, they have the order of their values. */
function bitsBeyondF16(bits: Uint16Array): number {
  for (let i = 0; i < bits.length; i++) if ((bits[i] & 0x7fff) > mostBits) return i
  return -1
}
