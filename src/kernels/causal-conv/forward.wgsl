// Depthwise causal convolution (each channel separately) with SiLU: y[t,c] = silu(z), z = sum over j of weight[c, TAPS-1-j] x[t-j, c], the newest
// input (j = 0) first, for the `width` channels from `first` on. x (rows, channels), weight (channels, TAPS), y (rows, width). BACKWARD: dz[t,c] =
// dy[t,c] silu'(z), dz (rows, channels).
// GATED: y = C z for x (rows, 3 channels) as in inputs.wgsl, without SiLU; BACKWARD: dz = dy C, and C's part of dx (rows, 3 channels) is dy z.
// One invocation computes four neighbouring channels; `channels`, `first` and `width` count groups of four.
// CACHE: runs[t] = (slot of the row's sequence, its first row in this pass, its rows in this pass, 1 if it continues from the slot's inputs); inputs
// (slots, TAPS-1, channels), oldest first. Otherwise info[t].z is the sequence's first row (attention/common.wgsl).
struct Params { rows: u32, channels: u32, first: u32, width: u32 }
alias Value = vec4f;
#include "inputs.wgsl"
#include "taps.wgsl"
#if BACKWARD
@group(0) @binding(2) var<storage, read> dy: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> dz: array<vec4f>;
#if GATED
@group(0) @binding(5) var<storage, read_write> dx: array<vec4f>;
#endif
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

// The input of channels 4c .. 4c + 3 that precedes row t by j rows in its sequence; 0 before the sequence's beginning.
fn before(t: u32, j: u32, c: u32) -> vec4f {
#if CACHE
  let run = runs[t];
  let own = t - run.y;
  if (own >= j) { return input_of(t - j, c); }
  if (run.w == 0u) { return vec4f(); }
  return inputs[(run.x * $(TAPS-1)u + $(TAPS-1)u + own - j) * p.channels + c];
#else
  if (t - info[t].z < j) { return vec4f(); }
  return input_of(t - j, c);
#endif
}

fn one(e: u32) {
  let t = e / p.width;
  if (t >= p.rows) { return; }
  let c = p.first + e % p.width;
  let taps = taps_of(c);
  var z = vec4f();
#for j in 0..TAPS
  z = fma(taps[$(j)], before(t, $(j)u, c), z);
#end
#if GATED
  let gate = (3u * t + 1u) * p.channels + c;
#if BACKWARD
  dz[t * p.channels + c] = dy[e] * x[gate];
  dx[gate] = dy[e] * z;
#else
  y[e] = x[gate] * z;
#endif
#else
  let s = 1.0 / (1.0 + exp(-z));
#if BACKWARD
  dz[t * p.channels + c] = dy[e] * s * fma(z, 1.0 - s, vec4f(1.0));
#else
  y[e] = z * s;
#endif
#endif
}
