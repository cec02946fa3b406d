// backward_q.wgsl to the bit, with one row of the batch per lane, and HELD as in row_lanes.wgsl.
struct Params { rows: u32, elements: u32, scale: f32 }
@group(0) @binding(0) var q: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var k: texture_storage_2d<rgba32float, read>;
@group(0) @binding(2) var v: texture_storage_2d<rgba32float, read>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var d_out: texture_storage_2d<rgba32float, read>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dq: array<E>;
#include "common.wgsl"
#include "lanes.wgsl"
#include "load_kv.wgsl"
#include "load_q.wgsl"
#include "layout_cpu.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#include "lanes_rows.wgsl"
#for h in 0..HG
#for e in 0..DE
  var q_$(h)_$(e) = E();
  var do_$(h)_$(e) = E();
  var dq_$(h)_$(e) = E();
#end
  let soft_$(h) = soft[min(row, p.rows - 1u) * HEADS + head0 + $(h)u];
#end
  for (var e = 0u; e < p.elements; e++) {
#for h in 0..HG
    let q_part_$(h) = load_q(min(row, p.rows - 1u), head0 + $(h)u, e);
    let do_part_$(h) = load_d_out(min(row, p.rows - 1u), head0 + $(h)u, e);
#for e in 0..DE
    q_$(h)_$(e) = select(q_$(h)_$(e), q_part_$(h), e == $(e)u);
    do_$(h)_$(e) = select(do_$(h)_$(e), do_part_$(h), e == $(e)u);
#end
#end
  }
#let LOADS = 2*KU*C
#include "held_cpu.wgsl"
#include "lanes_leads.wgsl"
#if HELD
    let rows_held = key_row(at, min(j_first + lane, keys - 1u));
#include "held_kv.wgsl"
#endif
    for (var j = j_first; j < keys; j += $(KU)u) {
#if HELD
#for h in 0..HG
#for u in 0..KU
      var s_$(h)_$(u) = 0.0;
      var dp_$(h)_$(u) = 0.0;
#end
#let BLOCK = 2*h
#include "apart_cpu.wgsl"
#for e in 0..DE
#for u in 0..KU
        s_$(h)_$(u) = dot_add(q_$(h)_$(e), subgroupBroadcast(held[$(C*u+e/LANES)], $(e%LANES)u), s_$(h)_$(u));
#end
#end
      }
#let BLOCK = 2*h+1
#include "apart_cpu.wgsl"
#for e in 0..DE
#for u in 0..KU
        dp_$(h)_$(u) = dot_add(do_$(h)_$(e), subgroupBroadcast(held[$(C*KU+C*u+e/LANES)], $(e%LANES)u), dp_$(h)_$(u));
#end
#end
      }
#end
#else
#for u in 0..KU
      let kv_row_$(u) = key_row(at, min(j + $(u)u, keys - 1u));
#for c in 0..C
      let k_$(u)_$(c) = load_k(kv_row_$(u), kv_head, min($(c)u * LANES + lane, DE - 1u));
      let v_$(u)_$(c) = load_v(kv_row_$(u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#for h in 0..HG
      var s_$(h)_$(u) = 0.0;
      var dp_$(h)_$(u) = 0.0;
#end
#end
#for e in 0..DE
#for u in 0..KU
      {
        let kk = subgroupBroadcast(k_$(u)_$(e/LANES), $(e%LANES)u);
        let vv = subgroupBroadcast(v_$(u)_$(e/LANES), $(e%LANES)u);
#for h in 0..HG
        s_$(h)_$(u) = dot_add(q_$(h)_$(e), kk, s_$(h)_$(u));
        dp_$(h)_$(u) = dot_add(do_$(h)_$(e), vv, dp_$(h)_$(u));
#end
      }
#end
#end
#endif
#for u in 0..KU
#if WINDOW
      let sees_$(u) = j + $(u)u < limit && j + $(u)u >= low_own;
#else
      let sees_$(u) = j + $(u)u < limit;
#endif
#for h in 0..HG
      let w_$(h)_$(u) = exp(s_$(h)_$(u) * p.scale - soft_$(h).x);
      let ds_$(h)_$(u) = select(0.0, w_$(h)_$(u) * (dp_$(h)_$(u) - soft_$(h).y) * p.scale, sees_$(u));
#end
#end
#if HELD
#for h in 0..HG
#let BLOCK = h
#include "apart_cpu.wgsl"
#for e in 0..DE
        var sum_$(e) = dq_$(h)_$(e);
#for u in 0..KU
        sum_$(e) = fma(E(ds_$(h)_$(u)), subgroupBroadcast(held[$(C*u+e/LANES)], $(e%LANES)u), sum_$(e));
#end
        dq_$(h)_$(e) = sum_$(e);
#end
      }
#end
      let rows_held = key_row(at, min(j + $(KU)u + lane, keys - 1u));
#include "held_kv.wgsl"
#else
#for e in 0..DE
      {
#for u in 0..KU
        let kk_$(u) = subgroupBroadcast(k_$(u)_$(e/LANES), $(e%LANES)u);
#end
#for h in 0..HG
        var sum_$(h) = dq_$(h)_$(e);
#for u in 0..KU
        sum_$(h) = fma(E(ds_$(h)_$(u)), kk_$(u), sum_$(h));
#end
        dq_$(h)_$(e) = sum_$(h);
#end
      }
#end
#endif
    }
  }
  for (var e = 0u; e < p.elements; e++) {
#for h in 0..HG
    var part_$(h) = dq_$(h)_0;
#for e in 1..DE
    part_$(h) = select(part_$(h), dq_$(h)_$(e), e == $(e)u);
#end
    if (taken) { dq[(row * HEADS + head0 + $(h)u) * DE + e] = part_$(h); }
#end
  }
}
