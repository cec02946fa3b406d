// For each token and head, flow[t] = q[t] . dq[t] + k[t] . (read_by[t] - written[t]): what it reads of the state, minus what is read of what it
// writes. Sums of these are the decay's gradient (decay_gradient.wgsl). q, k (rows, key heads, KEY), dq, read_by, written (rows, heads, KEY), flow
// (rows, heads).
struct Params { count: u32, heads: u32, ratio: u32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> dq: array<vec4f>;
@group(0) @binding(3) var<storage, read> read_by: array<vec4f>;
@group(0) @binding(4) var<storage, read> written: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> flow: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
  let of_key = (e / p.heads * (p.heads / p.ratio) + e % p.heads / p.ratio) * $(KEY/4)u;
  var sum = vec4f();
  // The loop begins at a 0 that the compiler cannot know: lavapipe would unroll it, and take ten times as long to compile.
  for (var i = p.count >> 31u; i < $(KEY/4)u; i++) {
    let own = e * $(KEY/4)u + i;
    sum = fma(q[of_key + i], dq[own], sum);
    sum = fma(k[of_key + i], read_by[own] - written[own], sum);
  }
  flow[e] = (sum.x + sum.y) + (sum.z + sum.w);
}
