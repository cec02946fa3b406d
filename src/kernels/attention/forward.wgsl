// Causal attention with grouped queries (arXiv 2305.13245), online softmax (arXiv 2205.14135), packed and variable-length:
//   o[t,h] = sum_j p_j v_j, p = softmax_j(scale q[t,h] . k_j) over the keys that info[t] names; lse[t,h] = log sum_j exp(scale q . k_j).
// q, o (rows, heads, D), k, v (key rows, kv heads, D), lse (rows, heads).
// A workgroup takes one row and HG query heads that share a kv head. Keys go by tiles of LANES in logical order: lane l scores key l of
// the tile; then lane l sums its part of the values over the tile's keys in order. Tiles start at logical key 0, so the order of every
// sum depends on the position alone: training, prefill and decode give the same bits.
struct Params { rows: u32, lanes: u32, elements: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<E>;
@group(0) @binding(1) var<storage, read> k: array<E>;
@group(0) @binding(2) var<storage, read> v: array<E>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read_write> o: array<E>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
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
  var o_$(g)_$(c) = E();
#end
  var m_$(g) = -3.0e38;
  var l_$(g) = 0.0;
#end
  // One load (and below one store) for all heads and parts: see common.wgsl about loops.
  for (var s = 0u; s < $(HG)u * parts(); s++) {
    let part = q[(row * HEADS + head0 + s / C) * DE + min((s % C) * LANES + lane, DE - 1u)];
#for g in 0..HG
#for c in 0..C
    q_$(g)_$(c) = select(q_$(g)_$(c), part, s == $(g*C+c)u);
#end
#end
  }
  for (var j0 = 0u; j0 < keys; j0 += LANES) {
    let j = min(j0 + lane, keys - 1u);
    let k_at = (key_row(at, j) * KV_HEADS + kv_head) * DE;
#for g in 0..HG
    var s_$(g) = 0.0;
#end
    for (var c = 0u; c * LANES < elements(); c++) {
#for g in 0..HG
      var part_$(g) = q_$(g)_0;
#for c in 1..C
      part_$(g) = select(part_$(g), q_$(g)_$(c), c == $(c)u);
#end
#end
      for (var i = 0u; i < min(turns(), elements() - c * LANES); i++) {
        let kv = k[k_at + c * LANES + i];
#for g in 0..HG
        s_$(g) = dot_add(e_from(lane, part_$(g), i), kv, s_$(g));
#end
      }
    }
#for g in 0..HG
    s_$(g) = select(-3.0e38, s_$(g) * p.scale, j0 + lane < keys);
    let new_$(g) = max(m_$(g), lanes_max(lane, s_$(g)));
    let w_$(g) = select(0.0, exp(s_$(g) - new_$(g)), j0 + lane < keys);
    let shrink_$(g) = exp(m_$(g) - new_$(g));
    l_$(g) = fma(l_$(g), shrink_$(g), lanes_sum(lane, w_$(g)));
    m_$(g) = new_$(g);
#for c in 0..C
    o_$(g)_$(c) *= shrink_$(g);
#end
#end
    for (var i = 0u; i < min(turns(), keys - j0); i++) {
      let v_at = (key_row(at, j0 + i) * KV_HEADS + kv_head) * DE;
#for g in 0..HG
      let p_$(g) = f_from(lane, w_$(g), i);
#end
#for c in 0..C
      if ($(c)u * LANES + lane < DE) {
        let vv = v[v_at + $(c)u * LANES + lane];
#for g in 0..HG
        o_$(g)_$(c) = fma(E(p_$(g)), vv, o_$(g)_$(c));
#end
      }
#end
    }
  }
#for g in 0..HG
#for c in 0..C
  o_$(g)_$(c) /= l_$(g);
#end
#end
  for (var s = 0u; s < $(HG)u * parts(); s++) {
    var part = o_0_0;
#for g in 0..HG
#for c in 0..C
    part = select(part, o_$(g)_$(c), s == $(g*C+c)u);
#end
#end
    let e = (s % C) * LANES + lane;
    if (e < DE) { o[(row * HEADS + head0 + s / C) * DE + e] = part; }
  }
#for g in 0..HG
  if (lane == 0u) { lse[row * HEADS + head0 + $(g)u] = m_$(g) + log(l_$(g)); }
#end
}
