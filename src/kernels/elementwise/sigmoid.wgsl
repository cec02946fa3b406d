// y = 1 / (1 + exp(-x)); BACKWARD: dx = dy s (1 - s), given s = y. Elementwise over `count` values.
struct Params { count: u32 }
#if BACKWARD
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;
#else
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#endif
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
#if BACKWARD
  dx[i] = dy[i] * y[i] * (1.0 - y[i]);
#else
  y[i] = 1.0 / (1.0 + exp(-x[i]));
#endif
}
