// The logarithm of the decay of each head's state (Mamba 2's form, arXiv 2405.21060): y[t,h] = -exp(a_log[h]) softplus(z), z = a[t,h] + dt_bias[h];
// BACKWARD: da = dy * -exp(a_log[h]) / (1 + exp(-z)), and dlog = dy y, whose sum over t is a_log's gradient. All (rows, heads).
struct Params { count: u32, heads: u32 }
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> a_log: array<f32>;
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;
#if BACKWARD
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> da: array<f32>;
@group(0) @binding(5) var<storage, read_write> dlog: array<f32>;
#else
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
#endif
#include "flat.wgsl"

// log(1 + exp(z)) without an exp that overflows. For small e, 1 + e loses digits of e, so a series replaces log(1 + e).
fn softplus(z: f32) -> f32 {
  let e = exp(-abs(z));
  let tail = select(log(1.0 + e), e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * 0.25))), e < 0.01);
  return max(z, 0.0) + tail;
}

fn one(e: u32) {
  if (e >= p.count) { return; }
  let h = e % p.heads;
  let z = a[e] + dt_bias[h];
  let rate = -exp(a_log[h]);
#if BACKWARD
  da[e] = dy[e] * rate / (1.0 + exp(-z));
  dlog[e] = dy[e] * rate * softplus(z);
#else
  y[e] = rate * softplus(z);
#endif
}
