// Maps z to an unsigned integer with the same order; 0 and -0 are equal.
fn code(z: f32) -> u32 {
  let u = bitcast<u32>(z);
  return select(u | 0x80000000u, ~u, u > 0x80000000u);
}
