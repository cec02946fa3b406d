// Backward of y = silu(g) * u: du = dy silu(g), dg = dy u s (1 + g (1 - s)) with s = 1 / (1 + exp(-g)). Elementwise over `count` values.
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read> u: array<f32>;
@group(0) @binding(3) var<storage, read_write> dg: array<f32>;
@group(0) @binding(4) var<storage, read_write> du: array<f32>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  let v = g[i];
  let s = 1.0 / (1.0 + exp(-v));
  du[i] = dy[i] * v * s;
  dg[i] = dy[i] * u[i] * s * fma(v, 1.0 - s, 1.0);
}
