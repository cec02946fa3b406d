// out[i] = x[index[i]] for `rows` rows of `width` float32 values.
struct Params { rows: u32, width: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.rows * p.width) { return; }
  out[e] = x[index[e / p.width] * p.width + e % p.width];
}
