// Cosine and sine of neighbouring pairs of the rotary embedding, from element `at` of `table` on, as an E: of four pairs (VEC4: a table element has
// two), of two (VEC2) or of one.
struct Angles { cosine: E, sine: E }
fn angles_at(at: u32) -> Angles {
#if VEC4
  let turns_0 = table[at];
  let turns_1 = table[at + 1u];
  return Angles(vec4f(turns_0.xz, turns_1.xz), vec4f(turns_0.yw, turns_1.yw));
#else
#if VEC2
  let turns_0 = table[at];
  let turns_1 = table[at + 1u];
  return Angles(vec2f(turns_0.x, turns_1.x), vec2f(turns_0.y, turns_1.y));
#else
  let turn = table[at];
  return Angles(turn.x, turn.y);
#endif
#endif
}
