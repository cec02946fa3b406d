// From the statistics of all slices: logprob = z_target - lse, entropy = log s - w / s, lse = m + log s, for rows first .. first + rows.
struct Params { rows: u32, first: u32 }
@group(0) @binding(0) var<storage, read> stats: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(2) var<storage, read_write> entropy: array<f32>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;
#include "flat.wgsl"

fn one(t: u32) {
  if (t >= p.rows) { return; }
  let s = stats[t];
  let log_s = log(s.y);
  logprobs[p.first + t] = (s.w - s.x) - log_s;
  entropy[p.first + t] = log_s - s.z / s.y;
  lse[p.first + t] = s.x + log_s;
}
