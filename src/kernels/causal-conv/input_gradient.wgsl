// dx[t,c] = sum over j of weight[c, TAPS-1-j] dz[t+j, c], for the rows t + j of t's sequence, which ends before key_end[t]. All arrays (rows,
// channels). An invocation has four neighbouring channels; `channels` counts groups of four.
// GATED: with x (rows, 3 channels) as in inputs.wgsl, the sum times the values is B's gradient, and the sum times B is that of the values; C's part
// of dx is not changed.
struct Params { rows: u32, channels: u32 }
@group(0) @binding(0) var<storage, read> dz: array<vec4f>;
#include "taps.wgsl"
@group(0) @binding(2) var<storage, read> key_end: array<u32>;
@group(0) @binding(3) var<storage, read_write> dx: array<vec4f>;
#if GATED
@group(0) @binding(4) var<storage, read> x: array<vec4f>;
#endif
#include "flat.wgsl"

fn one(e: u32) {
  let t = e / p.channels;
  if (t >= p.rows) { return; }
  let c = e % p.channels;
  let taps = taps_of(c);
  let after = key_end[t] - t;
  var sum = vec4f();
#for j in 0..TAPS
  if ($(j)u < after) { sum = fma(taps[$(j)], dz[e + $(j)u * p.channels], sum); }
#end
#if GATED
  let b = 3u * t * p.channels + c;
  let value = b + 2u * p.channels;
  dx[b] = sum * x[value];
  dx[value] = sum * x[b];
#else
  dx[e] = sum;
#endif
}
