// out[i] = x[index[i]] for `rows` rows of `width` float32 values.
struct Params { rows: u32, width: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#include "flat.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let e = element(group, lane);
  if (e >= p.rows * p.width) { return; }
  out[e] = x[index[e / p.width] * p.width + e % p.width];
}
