// Counter-based randomness: a PCG-style permutation (Jarzynski and Olano, JCGT 2020) chained over three words.
fn pcg(v: u32) -> u32 {
  let s = v * 747796405u + 2891336453u;
  let w = ((s >> ((s >> 28u) + 4u)) ^ s) * 277803737u;
  return (w >> 22u) ^ w;
}
fn hash3(a: u32, b: u32, c: u32) -> u32 { return pcg(pcg(pcg(a) ^ b) ^ c); }
// Uniform in (0, 1): 23 bits, never 0 and never 1.
fn uniform01(h: u32) -> f32 { return (f32(h >> 9u) + 0.5) / 8388608.0; }
