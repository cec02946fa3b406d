// y = a + b, elementwise over `count` values.
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
#include "flat.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let i = element(group, lane);
  if (i >= p.count) { return; }
  y[i] = a[i] + b[i];
}
