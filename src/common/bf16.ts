/** bfloat16 conversion on the CPU. */
const view = new DataView(new ArrayBuffer(4))

/** The value of a bf16 bit pattern, which is the upper half of a float32. */
export function valueOfBf16(bits: number): number {
  view.setUint16(0, bits)
  return view.getFloat32(0)
}
