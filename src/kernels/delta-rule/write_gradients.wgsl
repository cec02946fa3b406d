// The gradient of k through what it writes to the state in scan.wgsl: dk[t] = dS moved[t], with dS as in scan_back.wgsl, recomputed from the last
// token on. dk (rows, heads, KEY); the other arrays, and the work of an invocation, are as in read_gradients.wgsl.
struct Params { rows: u32, heads: u32, ratio: u32 }
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> decay: array<f32>;
@group(0) @binding(3) var<storage, read> moved: array<vec4f>;
@group(0) @binding(4) var<storage, read> dv: array<vec4f>;
@group(0) @binding(5) var<storage, read> d_o: array<vec4f>;
@group(0) @binding(6) var<storage, read> key_end: array<u32>;
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
    for (var left = count; left > 0u; left -= min(left, TOKENS)) {
      let some = min(TOKENS, left);
      let first = row + left - some;
      bring_values(first, some, head, lane);
      let own = select(0u, some, i < KEY);
      for (var after = own; after > 0u; after--) {
        let t = after - 1u;
        let token = first + t;
        let of_head = token * p.heads + head;
#include "near_value.wgsl"
        let of_key = (token * key_heads + key_head) * KEY + i;
        let keeps = exp(decay[of_head]);
        let reads = vec4f(q[of_key]);
        let also = vec4f(k[of_key]);
        var sum = vec4f();
#for c in 0..VALUE/4
        s$(c) = fma(o_near[near + $(c)u], reads, s$(c));
        sum = fma(s$(c), d_near[near + $(c)u], sum);
        s$(c) = fma(w_near[near + $(c)u], also, s$(c)) * keeps;
#end
        dk[of_head * KEY + i] = (sum.x + sum.y) + (sum.z + sum.w);
      }
    }
  }
}
