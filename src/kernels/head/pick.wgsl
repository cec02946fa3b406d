// stats[t].w = logits[t, targets[t]] * inv_temperatures[t]: what PICK of softmax_slice does, once the target is known. logits (rows, stride).
// Rows whose inverse temperature is 0 are left out.
struct Params { rows: u32, stride: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> inv_temperatures: array<f32>;
@group(0) @binding(3) var<storage, read_write> stats: array<vec4f>;
#include "flat.wgsl"

fn one(t: u32) {
  if (t >= p.rows) { return; }
  if (inv_temperatures[t] == 0.0) { return; }
  stats[t].w = logits[t * p.stride + targets[t]] * inv_temperatures[t];
}
