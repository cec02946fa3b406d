// Backward pass of attention to k and v in one pass: for key row r, over every query row t that sees it and every query head h of its group,
//   dV_r += P dO[t,h], dK_r += scale dS q[t,h]; P and dS as in backward_q.wgsl.
// In a packed batch, a prompt comes right before all rollouts that share it, so the rows that see r are r .. key_end[r] - 1: neither lists nor
// atomics are needed. dk, dv (rows, kv heads, D).
// A workgroup takes KR neighbouring key rows of one kv head, which share the loads of q and dO, and goes through the queries in tiles of LANES, heads
// in order, rows in order: lane l scores row l of the tile, and then owns a part of dk and dv.
struct Params { rows: u32, lanes: u32, elements: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<E>;
@group(0) @binding(1) var<storage, read> k: array<E>;
@group(0) @binding(2) var<storage, read> v: array<E>;
#include "key_ends.wgsl"
@group(0) @binding(4) var<storage, read> d_out: array<E>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dk: array<E>;
@group(0) @binding(7) var<storage, read_write> dv: array<E>;
#include "common.wgsl"
#include "across.wgsl"
#include "load_kv.wgsl"
#include "load_q.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let place = place_of(group, $(KR)u, KV_HEADS);
  let row0 = place.x * $(KR)u;
  if (row0 >= p.rows) { return; }
  let kv_head = place.y;
  var last = 0u;
#for r in 0..KR
  let row_$(r) = min(row0 + $(r)u, p.rows - 1u);
  let end_$(r) = select(0u, end_of(row_$(r)), row0 + $(r)u < p.rows);
  last = max(last, end_$(r));
#for c in 0..C
  var k_$(r)_$(c) = E();
  var v_$(r)_$(c) = E();
  var dk_$(r)_$(c) = E();
  var dv_$(r)_$(c) = E();
#end
#end
  // One load for all rows and parts, as in forward.wgsl.
  for (var s = 0u; s < $(KR)u * parts(); s++) {
    let row = min(row0 + s / C, p.rows - 1u);
    let e = min((s % C) * LANES + lane, DE - 1u);
    let k_part = load_k(row, kv_head, e);
    let v_part = load_v(row, kv_head, e);
#for r in 0..KR
#for c in 0..C
    k_$(r)_$(c) = select(k_$(r)_$(c), k_part, s == $(r*C+c)u);
    v_$(r)_$(c) = select(v_$(r)_$(c), v_part, s == $(r*C+c)u);
#end
#end
  }
  for (var g = 0u; g < GROUP; g++) {
    let head = kv_head * GROUP + g;
    for (var t0 = row0; t0 < last; t0 += LANES) {
      let t = min(t0 + lane, last - 1u);
#for r in 0..KR
      var s_$(r) = 0.0;
      var dp_$(r) = 0.0;
#end
      for (var c = 0u; c * LANES < elements(); c++) {
#for r in 0..KR
        var k_part_$(r) = k_$(r)_0;
        var v_part_$(r) = v_$(r)_0;
#for c in 1..C
        k_part_$(r) = select(k_part_$(r), k_$(r)_$(c), c == $(c)u);
        v_part_$(r) = select(v_part_$(r), v_$(r)_$(c), c == $(c)u);
#end
#end
        for (var i = 0u; i < min(turns(), elements() - c * LANES); i++) {
          let qq = load_q(t, head, c * LANES + i);
          let gg = load_d_out(t, head, c * LANES + i);
#for r in 0..KR
          s_$(r) = dot_add(e_from(lane, k_part_$(r), i), qq, s_$(r));
          dp_$(r) = dot_add(e_from(lane, v_part_$(r), i), gg, dp_$(r));
#end
        }
      }
      let soft_t = soft[t * HEADS + head];
#for r in 0..KR
#if WINDOW
      let seen_$(r) = t0 + lane >= row_$(r) && t0 + lane < end_$(r) && places[t].y - places[row_$(r)].y < WINDOW;
#else
      let seen_$(r) = t0 + lane >= row_$(r) && t0 + lane < end_$(r);
#endif
      let w_$(r) = select(0.0, exp(s_$(r) * p.scale - soft_t.x), seen_$(r));
      let ds_$(r) = select(0.0, w_$(r) * (dp_$(r) - soft_t.y) * p.scale, seen_$(r));
#end
      for (var i = 0u; i < min(turns(), last - t0); i++) {
        let t_of = min(t0 + i, last - 1u);
#for r in 0..KR
        let p_$(r) = f_from(lane, w_$(r), i);
        let d_$(r) = f_from(lane, ds_$(r), i);
#end
#for c in 0..C
#if EVEN
        {
#else
        if ($(c)u * LANES + lane < DE) {
#endif
          let qq = load_q(t_of, head, $(c)u * LANES + lane);
          let gg = load_d_out(t_of, head, $(c)u * LANES + lane);
#for r in 0..KR
          dv_$(r)_$(c) = fma(E(p_$(r)), gg, dv_$(r)_$(c));
          dk_$(r)_$(c) = fma(E(d_$(r)), qq, dk_$(r)_$(c));
#end
        }
#end
      }
    }
  }
  for (var s = 0u; s < $(KR)u * parts(); s++) {
    var dk_part = dk_0_0;
    var dv_part = dv_0_0;
#for r in 0..KR
#for c in 0..C
    dk_part = select(dk_part, dk_$(r)_$(c), s == $(r*C+c)u);
    dv_part = select(dv_part, dv_$(r)_$(c), s == $(r*C+c)u);
#end
#end
    let e = (s % C) * LANES + lane;
    if (e < DE && row0 + s / C < p.rows) {
      dk[((row0 + s / C) * KV_HEADS + kv_head) * DE + e] = dk_part;
      dv[((row0 + s / C) * KV_HEADS + kv_head) * DE + e] = dv_part;
    }
  }
}
