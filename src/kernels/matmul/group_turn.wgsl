// Puts what belongs to columns n and n + HALF of a row of q (s = 0), k (1) or v (2) to `at` and `at` + HALF of that output: q and k turned by the angle table[turn_at], with
// the formula of rope/rope.wgsl, so its bits.
fn put_pair(s: u32, at: u32, turn_at: u32, a: f32, b: f32) {
  if (s == 2u) {
    y_2[at] = a;
    y_2[at + HALF] = b;
  } else {
    let turn = table[turn_at];
    let lower = fma(a, turn.x, -(b * turn.y));
    let upper = fma(b, turn.x, a * turn.y);
    if (s == 0u) {
      y_0[at] = lower;
      y_0[at + HALF] = upper;
    } else {
      y_1[at] = lower;
      y_1[at + HALF] = upper;
    }
  }
}
