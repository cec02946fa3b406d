// The weight's gradient, over PART rows at a time: out[part, c, TAPS-1-j] = sum over its rows t, in order, of dz[t,c] x[t-j,c], if row t - j belongs
// to t's sequence; x is what is convolved (inputs.wgsl).
struct Params { rows: u32, channels: u32 }
alias Value = f32;
#include "inputs.wgsl"
@group(0) @binding(1) var<storage, read> dz: array<f32>;
@group(0) @binding(2) var<storage, read> info: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  let channels = p.channels;
  let c = e / TAPS % channels;
  let j = TAPS - 1u - e % TAPS;
  let first = e / (TAPS * channels) * PART;
  if (first >= p.rows) { return; }
  var sum = 0.0;
  for (var t = first; t < min(first + PART, p.rows); t++) {
    if (t - info[t].z >= j) { sum = fma(dz[t * channels + c], input_of(t - j, c), sum); }
  }
  out[e] = sum;
}
