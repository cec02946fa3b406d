/** bfloat16 outside the GPU. */
const view = new DataView(new ArrayBuffer(4))

/** The value of bf16 bits: the upper half of a float32. */
export function valueOfBf16(bits: number): number {
  view.setUint16(0, bits)
  return view.getFloat32(0)
}
