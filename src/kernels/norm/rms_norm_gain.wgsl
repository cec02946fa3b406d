// Gradient of RMSNorm's gain, added to what is there: dgain[c] += sum over t of dy[t,c] x[t,c] rstd[t]. One invocation a channel; the
// order of the sum is t = 0, 1, ..
struct Params { rows: u32, channels: u32 }
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read_write> dgain: array<f32>;
#include "flat.wgsl"

fn one(c: u32) {
  if (c >= p.channels) { return; }
  var sum = 0.0;
  for (var t = 0u; t < p.rows; t++) { sum = fma(dy[t * p.channels + c], x[t * p.channels + c] * rstd[t], sum); }
  dgain[c] += sum;
}
