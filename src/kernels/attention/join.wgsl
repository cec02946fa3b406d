// Merges the softmax state (m, l, o) of a split of keys into that of the splits before it. forward.wgsl and combine.wgsl must do the same operations,
// so that they give the same bits:
//   M = max(m, m_s); l = l e^(m - M) + l_s e^(m_s - M); o likewise; m = M.
struct Joint { m: f32, before: f32, here: f32 }
fn joint(m: f32, m_split: f32) -> Joint {
  let high = max(m, m_split);
  return Joint(high, exp(m - high), exp(m_split - high));
}
fn join_l(l: f32, l_split: f32, j: Joint) -> f32 { return fma(l, j.before, l_split * j.here); }
fn join_o(o: E, o_split: E, j: Joint) -> E { return fma(o, E(j.before), o_split * j.here); }
