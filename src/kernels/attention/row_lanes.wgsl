// forward.wgsl to the bit, with one row of the batch per lane and HG of its heads: for CPU drivers, when neighbouring rows see the same keys. In
// forward.wgsl a lane has one key of a tile; unrolled for several rows that is two to four times the code that a core's cache holds, and rolled it is
// short loops of shuffles. Here an iteration takes KU keys, whose elements are broadcast to all rows, and a tile's maxima need no shuffle
// (bench/LOG.md, "Attention with rows in lanes"). Tiles, splits and the orders of sums are the same: the weights of key i of each tile have an
// accumulator of their own, l_i, and these are added up as lanes_tree.wgsl adds up lanes.
// HELD: what is broadcast lies on the stack (held_cpu.wgsl), first an iteration's keys and then its values, and heads go one after the other, so that
// the sums of KU keys stay in registers.
// SHARED: a lane has a (row, head) pair of texts with a common prefix, which go through its keys together (shared.ts); forward.wgsl (RESUME)
// continues from their partial sums, `state`.
struct Params { rows: u32, lanes: u32, elements: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<E>;
@group(0) @binding(1) var k: texture_storage_2d<rgba32float, read>;
@group(0) @binding(2) var v: texture_storage_2d<rgba32float, read>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
#if SHARED
@group(0) @binding(4) var<storage, read_write> state: array<vec4f>;
@group(0) @binding(5) var<storage, read> pages: array<u32>;
#else
@group(0) @binding(4) var<storage, read_write> o: array<E>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
#if PAGES
@group(0) @binding(6) var<storage, read> pages: array<u32>;
#endif
#endif
#include "common.wgsl"
#include "lanes.wgsl"
#include "load_kv.wgsl"
#include "join.wgsl"
#include "layout_cpu.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#if SHARED
#include "shared_rows.wgsl"
#else
#include "lanes_rows.wgsl"
  let q_row = min(row, p.rows - 1u);
#endif
#for h in 0..HG
#for e in 0..DE
  var q_$(h)_$(e) = E();
  var all_o_$(h)_$(e) = E();
  var o_$(h)_$(e) = E();
#end
#for i in 0..LANES
  var l_$(h)_$(i) = 0.0;
#end
  var m_$(h) = -3.0e38;
  var all_m_$(h) = -3.0e38;
  var all_l_$(h) = 0.0;
#end
  for (var e = 0u; e < p.elements; e++) {
#for h in 0..HG
    let part_$(h) = q[(q_row * HEADS + head0 + $(h)u) * DE + e];
#for e in 0..DE
    q_$(h)_$(e) = select(q_$(h)_$(e), part_$(h), e == $(e)u);
#end
#end
  }
#let LOADS = 2*KU*C
#include "held_cpu.wgsl"
#if SHARED
  {
    let limit = select(0u, keys, taken);
    let j_first = 0u;
#else
#include "lanes_leads.wgsl"
#endif
#if HELD
    let rows_held = row_in_tile(at, key_row(at, j_first), j_first, lane, keys);
#include "held_kv.wgsl"
#endif
    for (var first = j_first / $(SPLIT)u * $(SPLIT)u; first < keys; first += $(SPLIT)u) {
      let end = min(keys, first + $(SPLIT)u);
      for (var j0 = max(first, j_first); j0 < end; j0 += LANES) {
        let tile_row = key_row(at, j0);
#if HELD
        let rows_here = row_in_tile(at, tile_row, j0, lane, keys);
        let j_next = min(j0 + LANES, keys - 1u);
        let rows_next = row_in_tile(at, key_row(at, j_next), j_next, lane, keys);
#endif
#for h in 0..HG
        var top_$(h) = -3.0e38;
#for i in 0..LANES
        var s_$(h)_$(i) = 0.0;
#end
#end
        for (var i = 0u; i < p.lanes; i += $(KU)u) {
#if HELD
#for h in 0..HG
#for u in 0..KU
          var dot_$(h)_$(u) = 0.0;
#end
#let BLOCK = h
#include "apart_cpu.wgsl"
#for e in 0..DE
#for u in 0..KU
            dot_$(h)_$(u) = dot_add(q_$(h)_$(e), subgroupBroadcast(held[$(C*u+e/LANES)], $(e%LANES)u), dot_$(h)_$(u));
#end
#end
          }
#end
#include "next_rows.wgsl"
#for u in 0..KU
#for c in 0..C
          held[$(C*u+c)] = load_k(row_$(u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#else
#for u in 0..KU
          let k_row_$(u) = row_in_tile(at, tile_row, j0, i + $(u)u, keys);
#for c in 0..C
          let k_$(u)_$(c) = load_k(k_row_$(u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#for h in 0..HG
          var dot_$(h)_$(u) = 0.0;
#end
#end
#for e in 0..DE
#for u in 0..KU
          {
            let kk = subgroupBroadcast(k_$(u)_$(e/LANES), $(e%LANES)u);
#for h in 0..HG
            dot_$(h)_$(u) = dot_add(q_$(h)_$(e), kk, dot_$(h)_$(u));
#end
          }
#end
#end
#endif
#for u in 0..KU
#if WINDOW
          let sees_$(u) = j0 + i + $(u)u < limit && j0 + i + $(u)u >= low_own;
#else
          let sees_$(u) = j0 + i + $(u)u < limit;
#endif
#for h in 0..HG
          dot_$(h)_$(u) = select(-3.0e38, dot_$(h)_$(u) * p.scale, sees_$(u));
          top_$(h) = select(top_$(h), dot_$(h)_$(u), dot_$(h)_$(u) > top_$(h));
          s_$(h)_$(LANES-KU+u) = dot_$(h)_$(u);
#for g in 0..LANES/KU-1
          s_$(h)_$(g*KU+u) = select(s_$(h)_$(g*KU+u), dot_$(h)_$(u), i == $(g*KU)u);
#end
#end
#end
        }
#for h in 0..HG
        let new_$(h) = max(m_$(h), top_$(h));
        let shrink_$(h) = exp(m_$(h) - new_$(h));
        m_$(h) = new_$(h);
#for i in 0..LANES
#if WINDOW
        s_$(h)_$(i) = select(0.0, exp(s_$(h)_$(i) - new_$(h)), j0 + $(i)u < limit && j0 + $(i)u >= low_own);
#else
        s_$(h)_$(i) = select(0.0, exp(s_$(h)_$(i) - new_$(h)), j0 + $(i)u < limit);
#endif
        l_$(h)_$(i) = fma(l_$(h)_$(i), shrink_$(h), s_$(h)_$(i));
#end
#end
        for (var i = 0u; i < p.lanes; i += $(KU)u) {
#for u in 0..KU
#for h in 0..HG
          var w_$(h)_$(u) = s_$(h)_$(u);
#for g in 1..LANES/KU
          w_$(h)_$(u) = select(w_$(h)_$(u), s_$(h)_$(g*KU+u), i == $(g*KU)u);
#end
#end
#end
#for h in 0..HG
          let shrinks_$(h) = select(1.0, shrink_$(h), i == 0u);
#end
#if HELD
#for h in 0..HG
#let BLOCK = h
#include "apart_cpu.wgsl"
#for e in 0..DE
            var sum_$(e) = o_$(h)_$(e) * shrinks_$(h);
#for u in 0..KU
            sum_$(e) = fma(E(w_$(h)_$(u)), subgroupBroadcast(held[$(C*KU+C*u+e/LANES)], $(e%LANES)u), sum_$(e));
#end
            o_$(h)_$(e) = sum_$(e);
#end
          }
#end
#include "next_rows.wgsl"
#for u in 0..KU
#for c in 0..C
          held[$(C*KU+C*u+c)] = load_v(row_$(u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#else
#for u in 0..KU
          let v_row_$(u) = row_in_tile(at, tile_row, j0, i + $(u)u, keys);
#for c in 0..C
          let v_$(u)_$(c) = load_v(v_row_$(u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#for e in 0..DE
          {
#for u in 0..KU
            let vv_$(u) = subgroupBroadcast(v_$(u)_$(e/LANES), $(e%LANES)u);
#end
#for h in 0..HG
            var sum_$(h) = o_$(h)_$(e) * shrinks_$(h);
#for u in 0..KU
            sum_$(h) = fma(E(w_$(h)_$(u)), vv_$(u), sum_$(h));
#end
            o_$(h)_$(e) = sum_$(h);
#end
          }
#end
#endif
        }
      }
#if SHARED
      // A split that is not full stays open: each row's own keys continue it.
      if (end < first + $(SPLIT)u) { break; }
#endif
      // The end of a split. The o of rows without a key in it is 0, or NaN if a neighbour's values are NaN: it is ignored.
#for h in 0..HG
#for i in 0..LANES
      let v0_$(h)_$(i) = l_$(h)_$(i);
      l_$(h)_$(i) = 0.0;
#end
#for step in 0..LANES/8+2
#for i in 0..LANES/2/2**step
      let v$(step+1)_$(h)_$(i) = v$(step)_$(h)_$(2*i) + v$(step)_$(h)_$(2*i+1);
#end
#end
      let j_$(h) = joint(all_m_$(h), m_$(h));
      all_m_$(h) = j_$(h).m;
      all_l_$(h) = join_l(all_l_$(h), v$(LANES/8+2)_$(h)_0, j_$(h));
      m_$(h) = -3.0e38;
#for e in 0..DE
      all_o_$(h)_$(e) = select(all_o_$(h)_$(e), join_o(all_o_$(h)_$(e), o_$(h)_$(e), j_$(h)), first < limit);
      o_$(h)_$(e) = E();
#end
#end
    }
  }
#if SHARED
#include "shared_state.wgsl"
#else
  for (var e = 0u; e < p.elements; e++) {
#for h in 0..HG
    var part_$(h) = all_o_$(h)_0;
#for e in 1..DE
    part_$(h) = select(part_$(h), all_o_$(h)_$(e), e == $(e)u);
#end
    if (taken) { o[(row * HEADS + head0 + $(h)u) * DE + e] = part_$(h) / all_l_$(h); }
#end
  }
#for h in 0..HG
  if (taken) { lse[row * HEADS + head0 + $(h)u] = all_m_$(h) + log(all_l_$(h)); }
#end
#endif
}
