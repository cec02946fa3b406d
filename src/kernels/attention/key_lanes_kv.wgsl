// backward_kv.wgsl to the bit, with one key per lane, as row_lanes.wgsl has one row per lane. A workgroup takes KB blocks of LANES neighbouring keys
// of one kv head and goes through the queries that see any of them, TU per iteration, whose elements of q and dO are broadcast to all lanes. HELD: as
// in row_lanes.wgsl, block by block, with q and dO of an iteration on the stack.
struct Params { rows: u32, lanes: u32, elements: u32, scale: f32 }
@group(0) @binding(0) var q: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var k: texture_storage_2d<rgba32float, read>;
@group(0) @binding(2) var v: texture_storage_2d<rgba32float, read>;
#include "key_ends.wgsl"
@group(0) @binding(4) var d_out: texture_storage_2d<rgba32float, read>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dk: array<E>;
@group(0) @binding(7) var<storage, read_write> dv: array<E>;
#include "common.wgsl"
#include "lanes.wgsl"
#include "load_kv.wgsl"
#include "load_q.wgsl"
#include "layout_cpu.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let place = place_of(group, $(KB)u * LANES, KV_HEADS);
  let row0 = well_laid(place.x, lane) * $(KB)u * LANES;
  if (row0 >= p.rows) { return; }
  let kv_head = place.y;
  var most = 0u;
#for b in 0..KB
  let row_$(b) = row0 + $(b)u * LANES + lane;
  let end_$(b) = select(0u, end_of(min(row_$(b), p.rows - 1u)), row_$(b) < p.rows);
  most = max(most, end_$(b));
#for e in 0..DE
  var k_$(b)_$(e) = E();
  var v_$(b)_$(e) = E();
  var dk_$(b)_$(e) = E();
  var dv_$(b)_$(e) = E();
#end
#end
  let last = u32(lanes_max(lane, f32(most)));
  for (var e = 0u; e < p.elements; e++) {
#for b in 0..KB
    let k_part_$(b) = load_k(min(row_$(b), p.rows - 1u), kv_head, e);
    let v_part_$(b) = load_v(min(row_$(b), p.rows - 1u), kv_head, e);
#for e in 0..DE
    k_$(b)_$(e) = select(k_$(b)_$(e), k_part_$(b), e == $(e)u);
    v_$(b)_$(e) = select(v_$(b)_$(e), v_part_$(b), e == $(e)u);
#end
#end
  }
#let LOADS = 2*TU*C
#include "held_cpu.wgsl"
  for (var g = 0u; g < GROUP; g++) {
    let head = kv_head * GROUP + g;
#if HELD
#for u in 0..TU
#for c in 0..C
    held[$(C*u+c)] = load_q(min(row0 + $(u)u, last - 1u), head, min($(c)u * LANES + lane, DE - 1u));
    held[$(C*TU+C*u+c)] = load_d_out(min(row0 + $(u)u, last - 1u), head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#endif
    for (var t0 = row0; t0 < last; t0 += LANES) {
      let softs = soft[min(t0 + lane, last - 1u) * HEADS + head];
      for (var i = 0u; i < min(p.lanes, last - t0); i += $(TU)u) {
#for u in 0..TU
        let t_$(u) = min(t0 + i + $(u)u, last - 1u);
#if !HELD
#for c in 0..C
        let q_$(u)_$(c) = load_q(t_$(u), head, min($(c)u * LANES + lane, DE - 1u));
        let g_$(u)_$(c) = load_d_out(t_$(u), head, min($(c)u * LANES + lane, DE - 1u));
#end
#endif
        var soft_$(u) = subgroupBroadcast(softs, $(u)u);
#for n in 1..LANES/TU
        soft_$(u) = select(soft_$(u), subgroupBroadcast(softs, $(n*TU+u)u), i == $(n*TU)u);
#end
#for b in 0..KB
        var s_$(u)_$(b) = 0.0;
        var dp_$(u)_$(b) = 0.0;
#end
#end
#if HELD
#for b in 0..KB
#let BLOCK = 2*b
#include "apart_cpu.wgsl"
#for e in 0..DE
#for u in 0..TU
          s_$(u)_$(b) = dot_add(k_$(b)_$(e), subgroupBroadcast(held[$(C*u+e/LANES)], $(e%LANES)u), s_$(u)_$(b));
#end
#end
        }
#let BLOCK = 2*b+1
#include "apart_cpu.wgsl"
#for e in 0..DE
#for u in 0..TU
          dp_$(u)_$(b) = dot_add(v_$(b)_$(e), subgroupBroadcast(held[$(C*TU+C*u+e/LANES)], $(e%LANES)u), dp_$(u)_$(b));
#end
#end
        }
#end
#else
#for e in 0..DE
#for u in 0..TU
        {
          let qq = subgroupBroadcast(q_$(u)_$(e/LANES), $(e%LANES)u);
          let gg = subgroupBroadcast(g_$(u)_$(e/LANES), $(e%LANES)u);
#for b in 0..KB
          s_$(u)_$(b) = dot_add(k_$(b)_$(e), qq, s_$(u)_$(b));
          dp_$(u)_$(b) = dot_add(v_$(b)_$(e), gg, dp_$(u)_$(b));
#end
        }
#end
#end
#endif
#for u in 0..TU
#for b in 0..KB
#if WINDOW
        let seen_$(u)_$(b) = t0 + i + $(u)u >= row_$(b) && t0 + i + $(u)u < end_$(b) && places[t_$(u)].y - places[min(row_$(b), p.rows - 1u)].y < WINDOW;
#else
        let seen_$(u)_$(b) = t0 + i + $(u)u >= row_$(b) && t0 + i + $(u)u < end_$(b);
#endif
        let w_$(u)_$(b) = select(0.0, exp(s_$(u)_$(b) * p.scale - soft_$(u).x), seen_$(u)_$(b));
        let ds_$(u)_$(b) = select(0.0, w_$(u)_$(b) * (dp_$(u)_$(b) - soft_$(u).y) * p.scale, seen_$(u)_$(b));
#end
#end
#if HELD
#for b in 0..KB
#let BLOCK = 2*b
#include "apart_cpu.wgsl"
#for e in 0..DE
          var dv_sum_$(e) = dv_$(b)_$(e);
#for u in 0..TU
          dv_sum_$(e) = fma(E(w_$(u)_$(b)), subgroupBroadcast(held[$(C*TU+C*u+e/LANES)], $(e%LANES)u), dv_sum_$(e));
#end
          dv_$(b)_$(e) = dv_sum_$(e);
#end
        }
#let BLOCK = 2*b+1
#include "apart_cpu.wgsl"
#for e in 0..DE
          var dk_sum_$(e) = dk_$(b)_$(e);
#for u in 0..TU
          dk_sum_$(e) = fma(E(ds_$(u)_$(b)), subgroupBroadcast(held[$(C*u+e/LANES)], $(e%LANES)u), dk_sum_$(e));
#end
          dk_$(b)_$(e) = dk_sum_$(e);
#end
        }
#end
#for u in 0..TU
        let next_$(u) = min(t0 + i + $(TU+u)u, last - 1u);
#for c in 0..C
        held[$(C*u+c)] = load_q(next_$(u), head, min($(c)u * LANES + lane, DE - 1u));
        held[$(C*TU+C*u+c)] = load_d_out(next_$(u), head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#else
#for e in 0..DE
        {
#for u in 0..TU
          let qq_$(u) = subgroupBroadcast(q_$(u)_$(e/LANES), $(e%LANES)u);
          let gg_$(u) = subgroupBroadcast(g_$(u)_$(e/LANES), $(e%LANES)u);
#end
#for b in 0..KB
          var dv_sum_$(b) = dv_$(b)_$(e);
          var dk_sum_$(b) = dk_$(b)_$(e);
#for u in 0..TU
          dv_sum_$(b) = fma(E(w_$(u)_$(b)), gg_$(u), dv_sum_$(b));
          dk_sum_$(b) = fma(E(ds_$(u)_$(b)), qq_$(u), dk_sum_$(b));
#end
          dv_$(b)_$(e) = dv_sum_$(b);
          dk_$(b)_$(e) = dk_sum_$(b);
#end
        }
#end
#endif
      }
    }
  }
  for (var e = 0u; e < p.elements; e++) {
#for b in 0..KB
    var dk_part_$(b) = dk_$(b)_0;
    var dv_part_$(b) = dv_$(b)_0;
#for e in 1..DE
    dk_part_$(b) = select(dk_part_$(b), dk_$(b)_$(e), e == $(e)u);
    dv_part_$(b) = select(dv_part_$(b), dv_$(b)_$(e), e == $(e)u);
#end
    if (row_$(b) < p.rows) {
      dk[(row_$(b) * KV_HEADS + kv_head) * DE + e] = dk_part_$(b);
      dv[(row_$(b) * KV_HEADS + kv_head) * DE + e] = dv_part_$(b);
    }
#end
  }
}
