// partial[at + b] = sum of squares of block b of a flat bank of `count` values, in blocks of `block` values, one workgroup each.
// The order is that of 64 lanes, however many the workgroup has: sum j takes values j, j + 64, .. of the block, in runs of 16 that are added up one
// by one; then sums that are 32, 16, .. 1 apart are added. So the result is the same on every adapter, and short runs keep it within a few roundings
// of the exact sum. A NaN or infinity anywhere makes its partial sum not finite.
struct Params { count: u32, block: u32, at: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> partial: array<f32>;
#if !SUBGROUP
var<workgroup> scratch: array<f32, LANES>;
#endif

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let b = group.x + group.y * 65535u;
  let first = b * p.block;
  if (first >= p.count) { return; }
  let last = min(first + p.block, p.count);
#for t in 0..64/LANES
  var sum$(t) = 0.0;
#end
  for (var run = first; run < last; run += 1024u) {
    let end = min(run + 1024u, last);
#for t in 0..64/LANES
    var part$(t) = 0.0;
#end
    if (end == run + 1024u) {
      for (var i = run + lane; i < end; i += 64u) {
#for t in 0..64/LANES
        part$(t) = fma(x[i + $(t*LANES)u], x[i + $(t*LANES)u], part$(t));
#end
      }
    } else {
      for (var i = run + lane; i < end; i += 64u) {
#for t in 0..64/LANES
        let v$(t) = select(0.0, x[min(i + $(t*LANES)u, end - 1u)], i + $(t*LANES)u < end);
        part$(t) = fma(v$(t), v$(t), part$(t));
#end
      }
    }
#for t in 0..64/LANES
    sum$(t) += part$(t);
#end
  }
#for h in 1..5
#for t in 0..64/LANES/2**h
  sum$(t) += sum$(t + 64/LANES/2**h);
#end
#end
  var sum = sum0;
#if SUBGROUP
  for (var width = LANES / 2u; width > 0u; width /= 2u) { sum += subgroupShuffleXor(sum, width); }
#else
  scratch[lane] = sum;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { scratch[lane] += scratch[lane + width]; }
  }
  sum = scratch[lane];
#endif
  if (lane == 0u) { partial[p.at + b] = sum; }
}
