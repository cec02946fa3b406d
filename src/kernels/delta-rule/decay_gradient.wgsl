// ddecay[t] = the sum of `flow` over t's sequence from t on: what later tokens read of the state before t, of which exp(decay[t]) is a factor. Parts
// of the sum cancel, so it is compensated (Kahan summation). flow, ddecay (rows, heads); one invocation per head of a sequence.
struct Params { rows: u32, heads: u32 }
@group(0) @binding(0) var<storage, read> flow: array<f32>;
@group(0) @binding(1) var<storage, read> key_end: array<u32>;
@group(0) @binding(2) var<storage, read_write> ddecay: array<f32>;
#include "flat.wgsl"
#include "run.wgsl"

fn one(e: u32) {
  let row = e / p.heads;
  if (row >= p.rows) { return; }
  var sum = 0.0;
  var lost = 0.0;
  for (var left = count_of(row); left > 0u; left--) {
    let at = e + (left - 1u) * p.heads;
    let next = flow[at] - lost;
    let more = sum + next;
    lost = (more - sum) - next;
    sum = more;
    ddecay[at] = sum;
  }
}
