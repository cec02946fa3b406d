// Backward pass of scan.wgsl, from the end of each sequence, with the gradient dS of the state: dS += q[t] dO[t]^T; dd[t] = k[t] dS is the gradient
// of what is written, beta[t] u[t]; that of what is read before, k[t] S~, is -beta[t] dd[t], so dS~ = dS - k[t] (beta[t] dd[t])^T; dS = exp(decay[t])
// dS~. Also dv[t] = beta[t] dd[t].
// dO, dd, dv (rows, heads, VALUE); the other arrays, and the work of an invocation, are as in scan.wgsl.
struct Params { rows: u32, heads: u32, ratio: u32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> d_o: array<f32>;
@group(0) @binding(3) var<storage, read> decay: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> key_end: array<u32>;
@group(0) @binding(6) var<storage, read_write> dd: array<f32>;
@group(0) @binding(7) var<storage, read_write> dv: array<f32>;
#include "run.wgsl"
#include "near_keys.wgsl"

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = group.y / $(BLOCKS)u;
  let c = group.y % $(BLOCKS)u * WIDTH + lane;
  let begin = (group.x + group.z * 65535u) * ROWS;
  for (var row = begin; row < min(begin + ROWS, p.rows); row++) {
    let count = count_of(row);
    if (count == 0u) { continue; }
#for i in 0..KEY/4
    var s$(i) = vec4f();
#end
    for (var left = count; left > 0u; left -= min(left, TOKENS)) {
      let some = min(TOKENS, left);
      let first = row + left - some;
      bring_keys(first, some, head, lane);
      let own = select(0u, some, c < VALUE);
      for (var after = own; after > 0u; after--) {
        let t = after - 1u;
        let of_head = (first + t) * p.heads + head;
#include "near_key.wgsl"
        let keeps = exp(decay[of_head]);
        let given = vec4f(d_o[of_head * VALUE + c]);
        var sum = vec4f();
#for i in 0..KEY/4
        s$(i) = fma(q_near[near + $(i)u], given, s$(i));
        sum = fma(s$(i), k_near[near + $(i)u], sum);
#end
        let written = (sum.x + sum.y) + (sum.z + sum.w);
        let moved = beta[of_head] * written;
        dd[of_head * VALUE + c] = written;
        dv[of_head * VALUE + c] = moved;
#for i in 0..KEY/4
        s$(i) = fma(k_near[near + $(i)u], vec4f(-moved), s$(i)) * keeps;
#end
      }
    }
  }
}
