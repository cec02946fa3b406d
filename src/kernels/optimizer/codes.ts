/**
 * The 8-bit codes of AdamW's moments on the host: for checkpoints, which store moments as float32, and as the reference for adamw_8bit.wgsl.
 * They are the dynamic maps of "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861, section 1.3 and appendix F), 256 values in ascending
 * order: 0 and 1, and levels e = 0 .. 6, whose n values are the middles of n equal parts of 10^(e-6) x [0.1, 1]. The signed map (first moments) has n
 * = 2^e on either side of 0, the unsigned one (second moments) n = 2^(e+1). A block of 256 values is stored as the numbers of the map's values
 * nearest to x / scale, where scale is the block's largest |x|. A second moment that is not 0 never becomes 0 (adamw_8bit.wgsl says why).
 */

/** Values of a block. */
export const BLOCK = 256

/** 8-bit moments: a code for each value, and a scale for every 256 values (the last block may be shorter). */
export interface Codes {
  codes: Uint8Array
  scales: Float32Array
}

const levels = (first: number): number[] =>
  Array.from({ length: 7 }, (_, e) => {
    const n = first * 2 ** e
    return Array.from({ length: n }, (__, c) => 10 ** (e - 6) * (0.1 + (0.9 * (c + 0.5)) / n))
  }).flat()

/** The value of each code, ascending. */
export const MAPS: { signed: Float64Array; unsigned: Float64Array } = {
  signed: Float64Array.from([
    ...levels(1)
      .map((v) => -v)
      .toReversed(),
    0,
    ...levels(1),
    1,
  ]),
  unsigned: Float64Array.from([0, ...levels(2), 1]),
}

/** The code of x in -1 .. 1: that of the nearest value, or of the lower one if two are equally near. */
export function codeOf(x: number, signed: boolean): number {
  const map = signed ? MAPS.signed : MAPS.unsigned
  if (!signed && x <= 0) return 0
  let [low, high] = [signed ? 0 : 1, 255]
  while (low < high) {
    const middle = (low + high) >> 1
    if (x > (map[middle] + map[middle + 1]) / 2) low = middle + 1
    else high = middle
  }
  return low
}

/** Values as codes. */
export function encode(values: ArrayLike<number>, signed: boolean): Codes {
  const codes = new Uint8Array(values.length)
  const scales = new Float32Array(Math.ceil(values.length / BLOCK))
  for (let block = 0; block < scales.length; block++) {
    const [first, last] = [block * BLOCK, Math.min(values.length, (block + 1) * BLOCK)]
    let most = 0
    for (let i = first; i < last; i++) most = Math.max(most, Math.abs(values[i]))
    scales[block] = most
    for (let i = first; i < last; i++) codes[i] = codeOf(most > 0 ? values[i] / scales[block] : 0, signed)
  }
  return { codes, scales }
}

/** Codes as values. */
export function decode({ codes, scales }: Codes, signed: boolean): Float32Array {
  const map = signed ? MAPS.signed : MAPS.unsigned
  // Not Float32Array.from: it first makes a list of all codes, and an embedding has more of them than V8's lists can hold.
  const values = new Float32Array(codes.length)
  for (let i = 0; i < values.length; i++) values[i] = map[codes[i]] * scales[Math.floor(i / BLOCK)]
  return values
}
