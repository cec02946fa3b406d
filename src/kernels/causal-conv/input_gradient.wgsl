// dx[t,c] = sum over j of weight[c, TAPS-1-j] dz[t+j, c], for the rows t + j of t's sequence, which ends before key_end[t]. All (rows, channels).
struct Params { rows: u32, channels: u32 }
@group(0) @binding(0) var<storage, read> dz: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> key_end: array<u32>;
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  let t = e / p.channels;
  if (t >= p.rows) { return; }
  let c = e % p.channels;
  var sum = 0.0;
  for (var j = 0u; j < min(TAPS, key_end[t] - t); j++) { sum = fma(weight[c * TAPS + TAPS - 1u - j], dz[e + j * p.channels], sum); }
  dx[e] = sum;
}
