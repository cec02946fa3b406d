// Backward of attention to q, probabilities recomputed from the saved lse (arXiv 2307.08691):
//   P_j = exp(scale q.k_j - lse), dS_j = P_j (dO.v_j - delta), dq = scale sum_j dS_j k_j. Shapes and tiles as in forward.wgsl.
struct Params { rows: u32, lanes: u32, elements: u32, scale: f32 }
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
  var dq_$(g)_$(c) = E();
#end
  let soft_$(g) = soft[row * HEADS + head0 + $(g)u];
#end
  // One load for all heads and parts, as in forward.wgsl.
  for (var s = 0u; s < $(HG)u * parts(); s++) {
    let e = (row * HEADS + head0 + s / C) * DE + min((s % C) * LANES + lane, DE - 1u);
    let q_part = q[e];
    let do_part = d_out[e];
#for g in 0..HG
#for c in 0..C
    q_$(g)_$(c) = select(q_$(g)_$(c), q_part, s == $(g*C+c)u);
    do_$(g)_$(c) = select(do_$(g)_$(c), do_part, s == $(g*C+c)u);
#end
#end
  }
  for (var j0 = 0u; j0 < keys; j0 += LANES) {
    let j = min(j0 + lane, keys - 1u);
    let kv_at = (key_row(at, j) * KV_HEADS + kv_head) * DE;
#for g in 0..HG
    var s_$(g) = 0.0;
    var dp_$(g) = 0.0;
#end
    for (var c = 0u; c * LANES < elements(); c++) {
#for g in 0..HG
      var q_part_$(g) = q_$(g)_0;
      var do_part_$(g) = do_$(g)_0;
#for c in 1..C
      q_part_$(g) = select(q_part_$(g), q_$(g)_$(c), c == $(c)u);
      do_part_$(g) = select(do_part_$(g), do_$(g)_$(c), c == $(c)u);
#end
#end
      for (var i = 0u; i < min(turns(), elements() - c * LANES); i++) {
        let kk = k[kv_at + c * LANES + i];
        let vv = v[kv_at + c * LANES + i];
#for g in 0..HG
        s_$(g) = dot_add(e_from(lane, q_part_$(g), i), kk, s_$(g));
        dp_$(g) = dot_add(e_from(lane, do_part_$(g), i), vv, dp_$(g));
#end
      }
    }
#for g in 0..HG
    let w_$(g) = exp(s_$(g) * p.scale - soft_$(g).x);
    let ds_$(g) = select(0.0, w_$(g) * (dp_$(g) - soft_$(g).y) * p.scale, j0 + lane < keys);
#end
    for (var i = 0u; i < min(turns(), keys - j0); i++) {
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
  for (var s = 0u; s < $(HG)u * parts(); s++) {
    var part = dq_0_0;
#for g in 0..HG
#for c in 0..C
    part = select(part, dq_$(g)_$(c), s == $(g*C+c)u);
#end
#end
    let e = (s % C) * LANES + lane;
    if (e < DE) { dq[(row * HEADS + head0 + s / C) * DE + e] = part; }
  }
}
