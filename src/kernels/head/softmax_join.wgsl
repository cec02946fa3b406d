// Merges the statistics that softmax_part.wgsl wrote for a row's slices: with m = max m_s and f_s = exp(m_s - m), stats[t] = (m, sum of s_s f_s, sum
// of (w_s + s_s (m_s - m)) f_s, z_target). FINISH: also writes what finish.wgsl computes from these, to logprobs, entropy and lse from row `first`
// on.
// LANES invocations per row. Lane l takes slices l, l + LANES, .., then the lanes are summed: the order depends on the vocabulary alone. logits
// (rows, stride), targets (rows). BY_ROW is as in softmax_part.wgsl.
struct Params { rows: u32, stride: u32, slices: u32, first: u32, inv_temperature: f32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> stats: array<vec4f>;
#if FINISH
@group(0) @binding(3) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(4) var<storage, read_write> entropy: array<f32>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
#include "finished.wgsl"
#endif
#if BY_ROW
@group(0) @binding(6) var<storage, read> inv_temperatures: array<f32>;
#endif
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#include "softmax_row.wgsl"
  let at = p.rows + row * p.slices;
  var high = -3.0e38;
  for (var i = lane; i < p.slices; i += LANES) { high = max(high, stats[at + i].x); }
  let m = lanes_max(lane, high);
  var s = 0.0;
  var w = 0.0;
  for (var i = lane; i < p.slices; i += LANES) {
    let part = stats[at + i];
    let shift = part.x - m;
    let shrink = exp(shift);
    // Nothing is left of a slice that is far below, and its shift may be too large to multiply by.
    if (shrink > 0.0) {
      s = fma(part.y, shrink, s);
      w = fma(fma(part.y, shift, part.z), shrink, w);
    }
  }
  let s_all = lanes_sum(lane, s);
  let w_all = lanes_sum(lane, w);
  if (lane == 0u) {
    let all = vec4f(m, s_all, w_all, logits[row * p.stride + targets[row]] * inv);
    stats[row] = all;
#if FINISH
    let done = finished(all);
    logprobs[p.first + row] = done.x;
    entropy[p.first + row] = done.y;
    lse[p.first + row] = done.z;
#endif
  }
}
