// Log-probability, entropy and lse of rows from `first` on, computed from the statistics of all slices (finished.wgsl).
struct Params { rows: u32, first: u32 }
@group(0) @binding(0) var<storage, read> stats: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(2) var<storage, read_write> entropy: array<f32>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;
#include "flat.wgsl"
#include "finished.wgsl"

fn one(t: u32) {
  if (t >= p.rows) { return; }
  let done = finished(stats[t]);
  logprobs[p.first + t] = done.x;
  entropy[p.first + t] = done.y;
  lse[p.first + t] = done.z;
}
