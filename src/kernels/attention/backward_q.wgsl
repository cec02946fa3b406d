// Backward of attention to q, probabilities recomputed from the saved lse (arXiv 2307.08691):
//   P_j = exp(scale q.k_j - lse), dS_j = P_j (dO.v_j - delta), dq = scale sum_j dS_j k_j. Shapes and tiles as in forward.wgsl.
struct Params { rows: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<E>;
@group(0) @binding(1) var<storage, read> k: array<E>;
@group(0) @binding(2) var<storage, read> v: array<E>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read> d_out: array<E>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dq: array<E>;
#include "common.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x + group.z * 65535u;
  if (row >= p.rows) { return; }
  let head0 = group.y * $(HG)u;
  let kv_head = head0 / GROUP;
  let at = info[row];
  let keys = at.w + 1u;
#for g in 0..HG
#for c in 0..C
  var q_$(g)_$(c) = E();
  var do_$(g)_$(c) = E();
  if ($(c)u * LANES + lane < DE) {
    q_$(g)_$(c) = q[(row * HEADS + head0 + $(g)u) * DE + $(c)u * LANES + lane];
    do_$(g)_$(c) = d_out[(row * HEADS + head0 + $(g)u) * DE + $(c)u * LANES + lane];
  }
  var dq_$(g)_$(c) = E();
#end
  let soft_$(g) = soft[row * HEADS + head0 + $(g)u];
#end
  for (var j0 = 0u; j0 < keys; j0 += LANES) {
    let j = min(j0 + lane, keys - 1u);
    let kv_at = (key_row(at, j) * KV_HEADS + kv_head) * DE;
#for g in 0..HG
    var s_$(g) = 0.0;
    var dp_$(g) = 0.0;
#end
#for c in 0..C
    for (var i = 0u; i < min(LANES, DE - $(c)u * LANES); i++) {
      let kk = k[kv_at + $(c)u * LANES + i];
      let vv = v[kv_at + $(c)u * LANES + i];
#for g in 0..HG
      s_$(g) = dot_add(e_from(lane, q_$(g)_$(c), i), kk, s_$(g));
      dp_$(g) = dot_add(e_from(lane, do_$(g)_$(c), i), vv, dp_$(g));
#end
    }
#end
#for g in 0..HG
    let w_$(g) = exp(s_$(g) * p.scale - soft_$(g).x);
    let ds_$(g) = select(0.0, w_$(g) * (dp_$(g) - soft_$(g).y) * p.scale, j0 + lane < keys);
#end
    for (var i = 0u; i < min(LANES, keys - j0); i++) {
      let k_at = (key_row(at, j0 + i) * KV_HEADS + kv_head) * DE;
#for g in 0..HG
      let d_$(g) = f_from(lane, ds_$(g), i);
#end
#for c in 0..C
      if ($(c)u * LANES + lane < DE) {
        let kk = k[k_at + $(c)u * LANES + lane];
#for g in 0..HG
        dq_$(g)_$(c) = fma(E(d_$(g)), kk, dq_$(g)_$(c));
#end
      }
#end
    }
  }
#for g in 0..HG
#for c in 0..C
  if ($(c)u * LANES + lane < DE) { dq[(row * HEADS + head0 + $(g)u) * DE + $(c)u * LANES + lane] = dq_$(g)_$(c); }
#end
#end
}
