// Activations as the matrix units read them (units.wgsl, group_units.wgsl), converted once for all of a product's workgroups: y[i, t] = f16(scale
// x[i, x_column + t]), and 0 from `depth` on. A thread writes one element of eight values. Rows of y are y_stride values apart, a multiple of 8;
// x_stride and x_column are multiples of 4.
struct Params { count: u32, words: u32, depth: u32, x_stride: u32, x_column: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4u>;
#include "flat.wgsl"
#include "narrow.wgsl"
fn one(index: u32) {
  if (index >= p.count) { return; }
  let t = index % p.words * 8u;
  let at = (index / p.words * p.x_stride + p.x_column + t) / 4u;
  var v = vec2u();
  var w = vec2u();
  if (t < p.depth) { v = narrow(x[at] * p.scale); }
  if (t + 4u < p.depth) { w = narrow(x[at + 1u] * p.scale); }
  y[index] = vec4u(v, w);
}
