// partial[b] = sum of squares of block b of a flat bank of `count` values; blocks of `block` values, one workgroup each. The blocks are summed on the host in
// float64, in order. A NaN or infinity anywhere makes its partial not finite.
struct Params { count: u32, block: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> partial: array<f32>;
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let b = group.x + group.y * 65535u;
  let first = b * p.block;
  if (first >= p.count) { return; }
  let last = min(first + p.block, p.count);
  var sum = 0.0;
  for (var i = first + lane; i < last; i += LANES) { sum = fma(x[i], x[i], sum); }
  let all = lanes_sum(lane, sum);
  if (lane == 0u) { partial[b] = all; }
}
