// Backward pass of attention to q, with probabilities recomputed from the saved lse (arXiv 2307.08691):
//   P_j = exp(scale q.k_j - lse), dS_j = P_j (dO.v_j - delta), dq = scale sum_j dS_j k_j. Shapes, tiles and rows are as in forward.wgsl.
struct Params { rows: u32, lanes: u32, elements: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<E>;
@group(0) @binding(1) var<storage, read> k: array<E>;
@group(0) @binding(2) var<storage, read> v: array<E>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read> d_out: array<E>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dq: array<E>;
#include "common.wgsl"
#include "across.wgsl"
#include "load_kv.wgsl"
#include "load_q.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let place = place_of(group, $(QR)u, $(HEADS/HG)u);
  let row0 = place.x * $(QR)u;
  if (row0 >= p.rows) { return; }
  let head0 = place.y * $(HG)u;
  let kv_head = head0 / GROUP;
#include "rows.wgsl"
#for x in 0..QR*HG
#for c in 0..C
  var q_$(x)_$(c) = E();
  var do_$(x)_$(c) = E();
  var dq_$(x)_$(c) = E();
#end
  let soft_$(x) = soft[min(row0 + $(x/HG)u, p.rows - 1u) * HEADS + head0 + $(x%HG)u];
#end
  // One load for all rows and heads, as in forward.wgsl.
  for (var s = 0u; s < $(QR*HG)u * parts(); s++) {
    let x = s / C;
    let row = min(row0 + x / $(HG)u, p.rows - 1u);
    let e = min((s % C) * LANES + lane, DE - 1u);
    let q_part = load_q(row, head0 + x % $(HG)u, e);
    let do_part = load_d_out(row, head0 + x % $(HG)u, e);
#for x in 0..QR*HG
#for c in 0..C
    q_$(x)_$(c) = select(q_$(x)_$(c), q_part, s == $(x*C+c)u);
    do_$(x)_$(c) = select(do_$(x)_$(c), do_part, s == $(x*C+c)u);
#end
#end
  }
#include "rows_leads.wgsl"
#if WINDOW
    for (var j0 = low / LANES * LANES; j0 < keys; j0 += LANES) {
#else
    for (var j0 = 0u; j0 < keys; j0 += LANES) {
#endif
      let j = min(j0 + lane, keys - 1u);
      let kv_row = key_row(at, j);
#for x in 0..QR*HG
      var s_$(x) = 0.0;
      var dp_$(x) = 0.0;
#end
      for (var c = 0u; c * LANES < elements(); c++) {
#for x in 0..QR*HG
        var q_part_$(x) = q_$(x)_0;
        var do_part_$(x) = do_$(x)_0;
#for c in 1..C
        q_part_$(x) = select(q_part_$(x), q_$(x)_$(c), c == $(c)u);
        do_part_$(x) = select(do_part_$(x), do_$(x)_$(c), c == $(c)u);
#end
#end
        for (var i = 0u; i < min(turns(), elements() - c * LANES); i++) {
          let kk = load_k(kv_row, kv_head, c * LANES + i);
          let vv = load_v(kv_row, kv_head, c * LANES + i);
#for x in 0..QR*HG
          s_$(x) = dot_add(e_from(lane, q_part_$(x), i), kk, s_$(x));
          dp_$(x) = dot_add(e_from(lane, do_part_$(x), i), vv, dp_$(x));
#end
        }
      }
#for x in 0..QR*HG
      let w_$(x) = exp(s_$(x) * p.scale - soft_$(x).x);
#if WINDOW
      let sees_$(x) = j0 + lane < keys_$(x/HG) && j0 + lane >= low_$(x/HG);
#else
      let sees_$(x) = j0 + lane < keys_$(x/HG);
#endif
      let ds_$(x) = select(0.0, w_$(x) * (dp_$(x) - soft_$(x).y) * p.scale, sees_$(x));
#end
      for (var i = 0u; i < min(turns(), keys - j0); i++) {
        let k_row = key_row(at, min(j0 + i, keys - 1u));
#for x in 0..QR*HG
        let d_$(x) = f_from(lane, ds_$(x), i);
#end
#for c in 0..C
#if EVEN
        {
#else
        if ($(c)u * LANES + lane < DE) {
#endif
          let kk = load_k(k_row, kv_head, $(c)u * LANES + lane);
#for x in 0..QR*HG
          dq_$(x)_$(c) = fma(E(d_$(x)), kk, dq_$(x)_$(c));
#end
        }
#end
      }
    }
  }
  for (var s = 0u; s < $(QR*HG)u * parts(); s++) {
    var part = dq_0_0;
#for x in 0..QR*HG
#for c in 0..C
    part = select(part, dq_$(x)_$(c), s == $(x*C+c)u);
#end
#end
    let row = row0 + s / C / $(HG)u;
    let e = (s % C) * LANES + lane;
    if (e < DE && row < p.rows) { dq[(row * HEADS + head0 + s / C % $(HG)u) * DE + e] = part; }
  }
}
