// Gradient of a bias, added to what is there: out[c] += scale * sum over t of x[t,c]; x (rows, columns). One invocation per column and part of PART
// rows, t in order.
// PARTIAL: out[part, c] is the part's sum, without scale, and these are then added up likewise; else there is one part, which is added to out[c].
struct Params { rows: u32, columns: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  let c = e % p.columns;
  let first = e / p.columns * PART;
  if (first >= p.rows) { return; }
  var sum = 0.0;
  for (var t = first; t < min(first + PART, p.rows); t++) { sum += x[t * p.columns + c]; }
#if PARTIAL
  out[e] = sum;
#else
  out[e] = fma(sum, p.scale, out[e]);
#endif
}
