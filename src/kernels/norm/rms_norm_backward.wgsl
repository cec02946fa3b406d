// Backward of RMSNorm to its input: dx[t,c] = rstd * (dy[c] gain[c] - xhat[c] * mean over c of dy gain xhat), xhat = x * rstd.
// SKIP: + skip[t,c], the gradient that came past the norm on the residual path. All (rows, channels). One workgroup a row.
struct Params { rows: u32, channels: u32 }
@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;
#if SKIP
@group(0) @binding(5) var<storage, read> skip: array<f32>;
#endif
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x + group.y * 65535u;
  if (row >= p.rows) { return; }
  let at = row * p.channels;
  let r = rstd[row];
  var sum = 0.0;
  for (var c = lane; c < p.channels; c += LANES) { sum = fma(dy[at + c] * gain[c], x[at + c] * r, sum); }
  let mean = lanes_sum(lane, sum) / f32(p.channels);
  for (var c = lane; c < p.channels; c += LANES) {
    var value = r * fma(-(x[at + c] * r), mean, dy[at + c] * gain[c]);
#if SKIP
    value += skip[at + c];
#endif
    dx[at + c] = value;
  }
}
