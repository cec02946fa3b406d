// Counter-based randomness: a PCG-style permutation (Jarzynski and Olano, JCGT 2020) chained over three words.
fn pcg(v: u32) -> u32 {
  let s = v * 747796405u + 2891336453u;
  let w = ((s >> ((s >> 28u) + 4u)) ^ s) * 277803737u;
  return (w >> 22u) ^ w;
}
fn hash3(a: u32, b: u32, c: u32) -> u32 { return pcg(pcg(pcg(a) ^ b) ^ c); }
// Uniform in (0, 1): 23 bits, never 0 and never 1.
fn uniform01(h: u32) -> f32 { return (f32(h >> 9u) + 0.5) / 8388608.0; }
// Gumbel noise, -log(E), where E = -log(1 - d) is exponentially distributed. Large noise means a small d, for which WGSL's log is useless (its
// absolute error near 1 is 2^-21, more than d itself; some drivers give 0, so infinite noise). There the series d + d^2/2 + .. is used, accurate to
// 1e-8.
fn gumbel(h: u32) -> f32 {
  let d = uniform01(h);
  let series = d * fma(d, fma(d, fma(d, fma(d, fma(d, 1.0 / 6.0, 0.2), 0.25), 1.0 / 3.0), 0.5), 1.0);
  return -log(select(-log(1.0 - d), series, d < 0.0625));
}
// A cheap upper bound of gumbel(h): -log(-log(1 - d)) <= -log(d), and d is at least 2^(its exponent). The factor is slightly above log(2) to allow
// for rounding in both.
fn gumbel_bound(h: u32) -> f32 { return 0.6935 * f32(127u - (bitcast<u32>(uniform01(h)) >> 23u)); }
