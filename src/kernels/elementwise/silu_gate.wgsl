// SwiGLU's gate (arXiv 2002.05202): y = silu(g) * u, silu(g) = g / (1 + exp(-g)). Elementwise over `count` values.
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> g: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  let v = g[i];
  y[i] = v / (1.0 + exp(-v)) * u[i];
}
