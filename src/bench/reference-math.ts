/** Plain float64 arithmetic on the host for reference.ts, on rows of values. */

export const matrix = (rows: number, columns: number): Float64Array[] =>
  Array.from({ length: rows }, () => new Float64Array(columns))

export const plus = (a: Float64Array[], b: Float64Array[]): Float64Array[] => a.map((row, t) => row.map((v, c) => v + b[t][c]))

export const times = (a: Float64Array[], factor = 1): Float64Array[] => a.map((row) => row.map((v) => v * factor))

export const sigmoid = (z: number): number => 1 / (1 + Math.exp(-z))
export const silu = (z: number): number => z * sigmoid(z)
/** GELU, tanh form (arXiv 1606.08415). */
export const gelu = (z: number): number => 0.5 * z * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (z + 0.044715 * z ** 3)))
/** log(1 + exp(z)). */
export const softplus = (z: number): number => Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)))

/** Dot product of n values: a[i ..] . b[j ..]. */
export function dot(a: ArrayLike<number>, i: number, b: ArrayLike<number>, j: number, n: number): number {
  let sum = 0
  for (let t = 0; t < n; t++) sum += a[i + t] * b[j + t]
  return sum
}

/** x Wᵀ + bias, W (outputs, inputs). */
export function multiply(x: Float64Array[], weight: Float32Array, bias?: Float32Array): Float64Array[] {
  const inputs = x[0].length
  const outputs = weight.length / inputs
  return x.map((row) =>
    Float64Array.from({ length: outputs }, (_, o) => dot(row, 0, weight, o * inputs, inputs) + (bias?.[o] ?? 0)),
  )
}

/** RMSNorm of rows, or of each part of a row that has the length of the gain (the heads of q and k). */
export function rmsNorm(x: Float64Array[], gain: ArrayLike<number>, eps: number): Float64Array[] {
  const n = gain.length
  return x.map((row) => {
    const out = new Float64Array(row.length)
    for (let at = 0; at < row.length; at += n) {
      const scale = 1 / Math.sqrt(dot(row, at, row, at, n) / n + eps)
      for (let c = 0; c < n; c++) out[at + c] = row[at + c] * scale * gain[c]
    }
    return out
  })
}

/** Rotary embedding, in place. The two coordinates are the halves of each head's first channels, as many as there are angles. */
export function rotate(row: Float64Array, headDim: number, inverse: Float32Array, position: number, factor = 1): void {
  const half = inverse.length
  for (let at = 0; at < row.length; at += headDim) {
    for (let i = 0; i < half; i++) {
      const angle = position * inverse[i]
      const [a, b] = [row[at + i], row[at + half + i]]
      row[at + i] = factor * (a * Math.cos(angle) - b * Math.sin(angle))
      row[at + half + i] = factor * (b * Math.cos(angle) + a * Math.sin(angle))
    }
  }
}
