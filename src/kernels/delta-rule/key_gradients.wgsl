// For each key head, the sums over its `ratio` heads, in order: dq of of_q, dk of read_by + written. of_q, read_by, written (rows, heads, KEY), dq,
// dk (rows, key heads, KEY), four values at a time.
struct Params { count: u32, ratio: u32 }
@group(0) @binding(0) var<storage, read> of_q: array<vec4f>;
@group(0) @binding(1) var<storage, read> read_by: array<vec4f>;
@group(0) @binding(2) var<storage, read> written: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> dq: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> dk: array<vec4f>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
  let first = e / $(KEY/4)u * p.ratio * $(KEY/4)u + e % $(KEY/4)u;
  var q_sum = vec4f();
  var k_sum = vec4f();
  for (var h = 0u; h < p.ratio; h++) {
    let own = first + h * $(KEY/4)u;
    q_sum += of_q[own];
    k_sum += read_by[own] + written[own];
  }
  dq[e] = q_sum;
  dk[e] = k_sum;
}
