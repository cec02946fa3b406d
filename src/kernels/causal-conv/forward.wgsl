// Causal convolution of each channel by itself, with SiLU: y[t,c] = silu(z), z = sum over j of weight[c, TAPS-1-j] x[t-j, c], for the `width` channels from
// `first` on. x (rows, channels), weight (channels, TAPS), y (rows, width). BACKWARD: dz[t,c] = dy[t,c] silu'(z), dz (rows, channels).
// An invocation has four neighbouring channels; `channels`, `first` and `width` count such fours.
struct Params { rows: u32, channels: u32, first: u32, width: u32 }
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
#include "taps.wgsl"
#if BACKWARD
@group(0) @binding(2) var<storage, read> dy: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> dz: array<vec4f>;
#else
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
#endif
#if CACHE
@group(0) @binding(4) var<storage, read> runs: array<vec4u>;
@group(0) @binding(5) var<storage, read> inputs: array<vec4f>;
#else
@group(0) @binding(4) var<storage, read> info: array<vec4u>;
#endif
#include "flat.wgsl"
#include "before.wgsl"

fn one(e: u32) {
  let t = e / p.width;
  if (t >= p.rows) { return; }
  let c = p.first + e % p.width;
  let z = convolved(t, c);
  let s = 1.0 / (1.0 + exp(-z));
#if BACKWARD
  dz[t * p.channels + c] = dy[e] * s * fma(z, 1.0 - s, vec4f(1.0));
#else
  y[e] = z * s;
#endif
}
