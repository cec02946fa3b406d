// Copies columns of a matrix into another: y[n, to + c] = x[n, start + c] for c < count, 0 for the rest of `width`. Rows of x are x_stride values
// apart, of y y_stride.
struct Params { rows: u32, x_stride: u32, start: u32, count: u32, y_stride: u32, to: u32, width: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.rows * p.width) { return; }
  let n = e / p.width;
  let c = e % p.width;
  var value = 0.0;
  if (c < p.count) { value = x[n * p.x_stride + p.start + c]; }
  y[n * p.y_stride + p.to + c] = value;
}
