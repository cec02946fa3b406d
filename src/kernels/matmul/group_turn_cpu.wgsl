// RoPE of q and k in group_cpu.wgsl, for several pairs of neighbouring columns at once (Out: out.wgsl), as storing a vector costs a CPU driver little
// more than storing a value. The formula of rope/rope.wgsl, so its bits.
alias E = Out;
#include "angles.wgsl"
struct Pairs { lower: Out, upper: Out }
fn turned(turn_at: u32, pairs: Pairs) -> Pairs {
  let turn = angles_at(turn_at / $(1+VEC4)u);
  return Pairs(fma(pairs.lower, turn.cosine, -(pairs.upper * turn.sine)), fma(pairs.upper, turn.cosine, pairs.lower * turn.sine));
}
#if KV_FOLD
#include "kv_place.wgsl"
fn put_texel(s: u32, row: u32, column: u32, texel: vec4f) {
  let at = kv_place(row, column / 4u);
  if (s == 1u) { textureStore(y_1, at, texel); }
  else { textureStore(y_2, at, texel); }
}
#endif
