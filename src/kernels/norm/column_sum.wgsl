// Gradient of a bias, added to what is there: out[c] += sum over t of x[t,c]; x (rows, columns). One invocation a column, t in order.
struct Params { rows: u32, columns: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
#include "flat.wgsl"

fn one(c: u32) {
  if (c >= p.columns) { return; }
  var sum = 0.0;
  for (var t = 0u; t < p.rows; t++) { sum += x[t * p.columns + c]; }
  out[c] += sum;
}
