// y = a + b, elementwise over `count` values.
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  y[i] = a[i] + b[i];
}
