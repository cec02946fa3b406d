// For GPUs: the contribution of one vocabulary slice to a row's statistics, with all slices in one dispatch, so that even few rows (decoding has 32)
// use the whole device.
// With z = logits * inv_temperature: stats[rows + t * slices + s] = (m, sum exp(z - m), sum exp(z - m) (z - m), -), m = max z, over the tokens from
// SLICE s on of slice s.
// logits (rows, stride), n tokens. A workgroup has one row and slice, whose z stay in registers: lane l has columns l, l + LANES, .. of the slice and
// sums them in this order, then the lanes are summed, so the order depends on the vocabulary alone. softmax_join.wgsl merges the slices. BY_ROW: each
// row has its own inverse temperature; 0 skips the row.
struct Params { rows: u32, n: u32, stride: u32, slices: u32, inv_temperature: f32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> stats: array<vec4f>;
#if BY_ROW
@group(0) @binding(2) var<storage, read> inv_temperatures: array<f32>;
#endif
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#include "softmax_row.wgsl"
  let at = row * p.stride;
  let first = group.z * SLICE + lane;
  // Past the last token, that token is read again: it does not change the maximum, and is not summed.
  var high = -3.0e38;
#for j in 0..SLICE/LANES
  let z$(j) = logits[at + min(first + $(j*LANES)u, p.n - 1u)] * inv;
  high = max(high, z$(j));
#end
  let m = lanes_max(lane, high);
  var s = 0.0;
  var w = 0.0;
#for j in 0..SLICE/LANES
  let d$(j) = z$(j) - m;
  let e$(j) = select(0.0, exp(d$(j)), first + $(j*LANES)u < p.n);
  s += e$(j);
  w = fma(e$(j), d$(j), w);
#end
  let s_all = lanes_sum(lane, s);
  let w_all = lanes_sum(lane, w);
  if (lane == 0u) { stats[p.rows + row * p.slices + group.z] = vec4f(m, s_all, w_all, 0.0); }
}
