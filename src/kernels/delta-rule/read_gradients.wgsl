// The gradients of q and k through what they read of the state in scan.wgsl: dq[t] = S dO[t], dk[t] = S~ w[t], w[t] = -dv[t] (scan_back.wgsl). S is
// recomputed from the first token on, from what was written, moved[t] = beta[t] u[t].
// An invocation has one row of S, and its workgroup neighbouring rows of the same head; dO, dv and moved of TOKENS tokens lie in workgroup memory.
// dq, dk (rows, heads, KEY): a key head's gradients are the sums over its heads (key_gradients.wgsl).
struct Params { rows: u32, heads: u32, ratio: u32 }
@group(0) @binding(0) var<storage, read> k: array<f32>;
@group(0) @binding(1) var<storage, read> decay: array<f32>;
@group(0) @binding(2) var<storage, read> moved: array<vec4f>;
@group(0) @binding(3) var<storage, read> dv: array<vec4f>;
@group(0) @binding(4) var<storage, read> d_o: array<vec4f>;
@group(0) @binding(5) var<storage, read> key_end: array<u32>;
@group(0) @binding(6) var<storage, read_write> dq: array<f32>;
@group(0) @binding(7) var<storage, read_write> dk: array<f32>;
#include "run.wgsl"
#include "near_values.wgsl"

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = group.y / $(BLOCKS)u;
  let i = group.y % $(BLOCKS)u * WIDTH + lane;
  let key_heads = p.heads / p.ratio;
  let key_head = head / p.ratio;
  let begin = (group.x + group.z * 65535u) * ROWS;
  for (var row = begin; row < min(begin + ROWS, p.rows); row++) {
    let count = count_of(row);
    if (count == 0u) { continue; }
#for c in 0..VALUE/4
    var s$(c) = vec4f();
#end
    for (var first = row; first < row + count; first += TOKENS) {
      let some = min(TOKENS, row + count - first);
      bring_values(first, some, head, lane);
      let own = select(0u, some, i < KEY);
      for (var t = 0u; t < own; t++) {
        let token = first + t;
        let of_head = token * p.heads + head;
#include "near_value.wgsl"
        let keeps = exp(decay[of_head]);
        let writes = vec4f(k[(token * key_heads + key_head) * KEY + i]);
        var by_k = vec4f();
        var by_q = vec4f();
#for c in 0..VALUE/4
        s$(c) *= keeps;
        by_k = fma(s$(c), w_near[near + $(c)u], by_k);
        s$(c) = fma(d_near[near + $(c)u], writes, s$(c));
        by_q = fma(s$(c), o_near[near + $(c)u], by_q);
#end
        dk[of_head * KEY + i] = (by_k.x + by_k.y) + (by_k.z + by_k.w);
        dq[of_head * KEY + i] = (by_q.x + by_q.y) + (by_q.z + by_q.w);
      }
    }
  }
}
