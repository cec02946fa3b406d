// group_turn.wgsl by several pairs of neighbouring columns at once (Out: out.wgsl), as a store of a vector costs a CPU driver little more than one of a value.
struct Pairs { lower: Out, upper: Out }
fn turned(turn_at: u32, pairs: Pairs) -> Pairs {
#if VEC4
  let turns_0 = table[turn_at / 2u];
  let turns_1 = table[turn_at / 2u + 1u];
  let cosine = vec4f(turns_0.xz, turns_1.xz);
  let sine = vec4f(turns_0.yw, turns_1.yw);
#else
#if VEC2
  let turns_0 = table[turn_at];
  let turns_1 = table[turn_at + 1u];
  let cosine = vec2f(turns_0.x, turns_1.x);
  let sine = vec2f(turns_0.y, turns_1.y);
#else
  let turn = table[turn_at];
  let cosine = turn.x;
  let sine = turn.y;
#endif
#endif
  return Pairs(fma(pairs.lower, cosine, -(pairs.upper * sine)), fma(pairs.upper, cosine, pairs.lower * sine));
}
#if KV_FOLD
#include "kv_place.wgsl"
fn put_texel(s: u32, row: u32, column: u32, texel: vec4f) {
  let at = kv_place(row, column / 4u);
  if (s == 1u) { textureStore(y_1, at, texel); }
  else { textureStore(y_2, at, texel); }
}
#endif
