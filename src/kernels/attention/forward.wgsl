// Causal attention with grouped queries (arXiv 2305.13245) and online softmax (arXiv 2205.14135), over packed sequences of any length:
//   o[t,h] = sum_j p_j v_j, p = softmax_j(scale q[t,h] . k_j) over the keys that info[t] names; lse[t,h] = log sum_j exp(scale q . k_j).
// q, o (rows, heads, D), k, v (key rows, kv heads, D), lse (rows, heads).
// A workgroup takes QR rows and HG query heads of one kv head; rows with the same keys go through them together. Keys go in tiles of LANES, in
// logical order: lane l scores key l of the tile, and then accumulates its elements of o (l, l + LANES, ..) over the tile's keys in order. Tiles
// start at logical key 0, so the order of every sum depends on the position alone: training, prefill and decode give the same bits.
// The same is true of splits of SPLIT keys, each with softmax sums of its own that are merged into those before it (join.wgsl): here, or with SPLITS
// in combine.wgsl. SPLITS is split-K: one workgroup per split, so that few rows with many keys fill a GPU. It writes parts (rows, heads, splits, D)
// and stats (rows, heads, splits) (m, l) instead of o and lse; QR is 1.
// HEADS_FIRST: neighbouring workgroups have the same rows, else the same head. TOUCH: prefetch for a cache in textures. Before a tile is computed,
// each 64-byte cache line of its keys and values is loaded once, LANES lines per load, so that the misses overlap; otherwise each is waited for when
// its key is needed, which takes most of the time.
// PACKED: for CPU drivers with subgroups. Each lane accumulates the weights of its own keys, and lanes are added up once, at the end of a split. The
// scalars of a row and head (maximum, sum, rescaling factors) are packed, LANES to a vector: lane l of vector v has those of row and head number v *
// LANES + l, so one exp serves LANES of them. Without PACKED, the weights of each tile are summed over the lanes and then added to l, as in
// tile_forward.wgsl on GPUs.
// AHEAD: for GPUs with subgroups. AHEAD vectors of a key, and UNROLL rows of V, are loaded before the first is used, and a tile's first UNROLL rows
// of V before its scores. A workgroup is one subgroup, and few rows have few of them, so only loads in flight hide the memory latency. The lane that
// scored a key knows its row of V; others get it by shuffle. AHEAD divides DE and LANES, UNROLL divides LANES; rows of V past the last key have
// weights of 0.
// O_F16: o in f16 (narrow_out.wgsl). RESUME: a row (QR is 1) continues from the partial sums that row_lanes.wgsl (SHARED) wrote for the info[row].z
// keys that it shares with other rows.
// WRITTEN: the loops over a tile's elements and keys are unrolled, so that every broadcast is from a constant lane: with 16 lanes a shuffle is a loop
// (lanes.wgsl). Keys past the last have weights of 0. The stack is aligned to a cache line (well_laid): otherwise its vectors straddle two, and it
// takes up to 1.3 times as long (bench/LOG.md, "Vectors of 512 bits").
struct Params { rows: u32, lanes: u32, elements: u32, splits: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<E>;
#if TEX
@group(0) @binding(1) var k: texture_storage_2d<rgba32float, read>;
@group(0) @binding(2) var v: texture_storage_2d<rgba32float, read>;
#else
@group(0) @binding(1) var<storage, read> k: array<KV>;
@group(0) @binding(2) var<storage, read> v: array<KV>;
#endif
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
#if SPLITS
@group(0) @binding(4) var<storage, read_write> parts_out: array<E>;
@group(0) @binding(5) var<storage, read_write> stats: array<vec2f>;
#else
#include "narrow_out.wgsl"
@group(0) @binding(4) var<storage, read_write> o: array<O>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
#endif
#if PAGES
@group(0) @binding(6) var<storage, read> pages: array<u32>;
#endif
#if RESUME
@group(0) @binding(7) var<storage, read> state: array<vec4f>;
#endif
#include "common.wgsl"
#include "across.wgsl"
#include "load_kv.wgsl"
#if !SPLITS
#include "join.wgsl"
#endif

#if PACKED
#if !WIDE
#include "lanes_tree.wgsl"
#endif
#endif
#if WRITTEN
#include "layout_cpu.wgsl"
#endif

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#if HEADS_FIRST
  let place = place_of(group.yxz, $(QR)u, $(HEADS/HG)u);
#else
  let place = place_of(group, $(QR)u, $(HEADS/HG)u);
#endif
#if WRITTEN
  let row0 = well_laid(place.x, lane) * $(QR)u;
#else
  let row0 = place.x * $(QR)u;
#endif
  if (row0 >= p.rows) { return; }
#if PART
  var any = false;
#for r in 0..QR
  any = any || takes(row0 + $(r)u);
#end
  if (!any) { return; }
#endif
#if SPLITS
  let split = group.y % p.splits;
  let head0 = (group.y / p.splits) * $(HG)u;
  if (split * $(SPLIT)u > info[row0].w) { return; }
#if WINDOW
  if ((split + 1u) * $(SPLIT)u <= lowest(info[row0].w)) { return; }
#endif
#else
  let head0 = place.y * $(HG)u;
#endif
  let kv_head = head0 / GROUP;
#include "rows.wgsl"
#for x in 0..QR*HG
#for c in 0..C
  var q_$(x)_$(c) = E();
  var o_$(x)_$(c) = E();
#if !SPLITS
  var all_o_$(x)_$(c) = E();
#endif
#end
  var l_$(x) = 0.0;
#end
#if PACKED
#include "packed_begin.wgsl"
#else
#for x in 0..QR*HG
  var m_$(x) = -3.0e38;
  var all_m_$(x) = -3.0e38;
  var all_l_$(x) = 0.0;
#end
#endif
  // One load (and below one store) for all rows, heads and parts: see across.wgsl about loops.
  for (var s = 0u; s < $(QR*HG)u * parts(); s++) {
    let x = s / C;
    let row = min(row0 + x / $(HG)u, p.rows - 1u);
    let part = q[(row * HEADS + head0 + x % $(HG)u) * DE + min((s % C) * LANES + lane, DE - 1u)];
#for x in 0..QR*HG
#for c in 0..C
    q_$(x)_$(c) = select(q_$(x)_$(c), part, s == $(x*C+c)u);
#end
#end
  }
#include "rows_leads.wgsl"
#if SPLITS
    {
      let first = split * $(SPLIT)u;
#else
#if WINDOW
    for (var first = low / $(SPLIT)u * $(SPLIT)u; first < keys; first += $(SPLIT)u) {
#else
#if RESUME
#include "resume.wgsl"
    for (var first = start / $(SPLIT)u * $(SPLIT)u; first < keys; first += $(SPLIT)u) {
#else
    for (var first = 0u; first < keys; first += $(SPLIT)u) {
#endif
#endif
#endif
      let end = min(keys, first + $(SPLIT)u);
#if WINDOW
      for (var j0 = max(first, low / LANES * LANES); j0 < end; j0 += LANES) {
#else
#if RESUME
      for (var j0 = max(first, start); j0 < end; j0 += LANES) {
#else
      for (var j0 = first; j0 < end; j0 += LANES) {
#endif
#endif
        let tile_row = key_row(at, j0);
        let k_row = row_in_tile(at, tile_row, j0, lane, keys);
#if TOUCH
        var touched = 0u;
        let tile_at = kv_place(tile_row, kv_head * DE) + vec2u(4u * lane, 0u);
#for t in 0..(DE+3)/4
        touched |= bitcast<u32>(textureLoad(k, tile_at + vec2u($(4*t)u * LANES, 0u)).x);
        touched |= bitcast<u32>(textureLoad(v, tile_at + vec2u($(4*t)u * LANES, 0u)).x);
#end
#endif
#if AHEAD
#for u in 0..UNROLL
#for c in 0..C
        let first_$(u)_$(c) = load_v(subgroupShuffle(k_row, $(u)u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#endif
#for x in 0..QR*HG
        var s_$(x) = 0.0;
#end
#if WRITTEN
#for e in 0..DE
        {
          let kk = load_k(k_row, kv_head, $(e)u);
#for x in 0..QR*HG
          s_$(x) = dot_add(subgroupBroadcast(q_$(x)_$(e/LANES), $(e%LANES)u), kk, s_$(x));
#end
        }
#end
#else
        for (var c = 0u; c * LANES < elements(); c++) {
#for x in 0..QR*HG
          var part_$(x) = q_$(x)_0;
#for c in 1..C
          part_$(x) = select(part_$(x), q_$(x)_$(c), c == $(c)u);
#end
#end
#if AHEAD
          for (var i = 0u; i < min(turns(), elements() - c * LANES); i += $(AHEAD)u) {
#for u in 0..AHEAD
            let kk_$(u) = load_k(k_row, kv_head, c * LANES + i + $(u)u);
#end
#for u in 0..AHEAD
#for x in 0..QR*HG
            s_$(x) = dot_add(e_from(lane, part_$(x), i + $(u)u), kk_$(u), s_$(x));
#end
#end
          }
#else
          for (var i = 0u; i < min(turns(), elements() - c * LANES); i++) {
            let kk = load_k(k_row, kv_head, c * LANES + i);
#for x in 0..QR*HG
            s_$(x) = dot_add(e_from(lane, part_$(x), i), kk, s_$(x));
#end
          }
#endif
        }
#endif
        // A tile that another row sees and this row does not has weights of 0 and a factor of 1 here, which changes none of this row's bits.
#for x in 0..QR*HG
#if WINDOW
        let sees_$(x) = j0 + lane < keys_$(x/HG) && j0 + lane >= low_$(x/HG);
#else
        let sees_$(x) = j0 + lane < keys_$(x/HG);
#endif
        s_$(x) = select(-3.0e38, s_$(x) * p.scale, sees_$(x));
        let top_$(x) = lanes_max(lane, s_$(x));
#end
#if PACKED
#include "packed_tile.wgsl"
#else
#for x in 0..QR*HG
        let new_$(x) = max(m_$(x), top_$(x));
        let shrink_$(x) = exp(m_$(x) - new_$(x));
        m_$(x) = new_$(x);
#end
#endif
#for x in 0..QR*HG
#if TOUCH
        // p.lanes is never 0, but the driver does not know that, so it keeps the loads of TOUCH.
        s_$(x) = select(s_$(x), f32(touched), p.lanes == 0u);
#endif
        let w_$(x) = select(0.0, exp(s_$(x) - new_$(x)), sees_$(x));
#if PACKED
        l_$(x) = fma(l_$(x), shrink_$(x), w_$(x));
#else
        l_$(x) = fma(l_$(x), shrink_$(x), weights_sum(lane, w_$(x)));
#endif
#for c in 0..C
        o_$(x)_$(c) *= shrink_$(x);
#end
#end
#if WRITTEN
#for i in 0..LANES
        {
          let v_row = row_in_tile(at, tile_row, j0, $(i)u, keys);
#for x in 0..QR*HG
          let p_$(x) = subgroupBroadcast(w_$(x), $(i)u);
#end
#for c in 0..C
#if EVEN
          {
#else
          if ($(c)u * LANES + lane < DE) {
#endif
            let vv = load_v(v_row, kv_head, $(c)u * LANES + lane);
#for x in 0..QR*HG
            o_$(x)_$(c) = fma(E(p_$(x)), vv, o_$(x)_$(c));
#end
          }
#end
        }
#end
#else
#if AHEAD
#for u in 0..UNROLL
#for x in 0..QR*HG
#for c in 0..C
        o_$(x)_$(c) = fma(E(f_from(lane, w_$(x), $(u)u)), first_$(u)_$(c), o_$(x)_$(c));
#end
#end
#end
        for (var i = $(UNROLL)u; i < min(LANES, keys - j0); i += $(UNROLL)u) {
#for u in 0..UNROLL
#for c in 0..C
          let vv_$(u)_$(c) = load_v(subgroupShuffle(k_row, i + $(u)u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
#for u in 0..UNROLL
#for x in 0..QR*HG
#for c in 0..C
          o_$(x)_$(c) = fma(E(f_from(lane, w_$(x), i + $(u)u)), vv_$(u)_$(c), o_$(x)_$(c));
#end
#end
#end
        }
#else
        for (var i = 0u; i < min(turns(), keys - j0); i += $(UNROLL)u) {
#for u in 0..UNROLL
          let v_row_$(u) = row_in_tile(at, tile_row, j0, i + $(u)u, keys);
#for x in 0..QR*HG
          let p_$(u)_$(x) = f_from(lane, w_$(x), i + $(u)u);
#end
#end
#for c in 0..C
#if EVEN
          {
#else
          if ($(c)u * LANES + lane < DE) {
#endif
#for u in 0..UNROLL
            let vv_$(u) = load_v(v_row_$(u), kv_head, $(c)u * LANES + lane);
#end
#for x in 0..QR*HG
#for u in 0..UNROLL
            o_$(x)_$(c) = fma(E(p_$(u)_$(x)), vv_$(u), o_$(x)_$(c));
#end
#end
          }
#end
        }
#endif
#endif
      }
#if PACKED
#include "packed_split.wgsl"
#else
#if !SPLITS
      // Rows without a key in this split are left unchanged: their o is 0 here, or NaN if a neighbour's values are NaN.
#for x in 0..QR*HG
      if (first < keys_$(x/HG)) {
        let j = joint(all_m_$(x), m_$(x));
        all_m_$(x) = j.m;
        all_l_$(x) = join_l(all_l_$(x), l_$(x), j);
#for c in 0..C
        all_o_$(x)_$(c) = join_o(all_o_$(x)_$(c), o_$(x)_$(c), j);
#end
        m_$(x) = -3.0e38;
        l_$(x) = 0.0;
      }
#for c in 0..C
      o_$(x)_$(c) = E();
#end
#end
#endif
#endif
    }
  }
#if SPLITS
#for x in 0..HG
  let place_$(x) = (row0 * HEADS + head0 + $(x)u) * p.splits + split;
#for c in 0..C
  if ($(c)u * LANES + lane < DE) { parts_out[place_$(x) * DE + $(c)u * LANES + lane] = o_$(x)_$(c); }
#end
#if !PACKED
  if (lane == 0u) { stats[place_$(x)] = vec2f(m_$(x), l_$(x)); }
#endif
#end
#if PACKED
  if (lane < $(HG)u) { stats[(row0 * HEADS + head0 + lane) * p.splits + split] = vec2f(m_0, all_l_0); }
#endif
#else
#for x in 0..QR*HG
#if PACKED
  let weight_$(x) = subgroupBroadcast(all_l_$(x/LANES), $(x%LANES)u);
#else
  let weight_$(x) = all_l_$(x);
#endif
#for c in 0..C
  o_$(x)_$(c) = all_o_$(x)_$(c) / weight_$(x);
#end
#end
  for (var s = 0u; s < $(QR*HG)u * parts(); s++) {
    var part = o_0_0;
#for x in 0..QR*HG
#for c in 0..C
    part = select(part, o_$(x)_$(c), s == $(x*C+c)u);
#end
#end
    let row = row0 + s / C / $(HG)u;
    let e = (s % C) * LANES + lane;
    if (e < DE && takes(row)) { o[(row * HEADS + head0 + s / C % $(HG)u) * DE + e] = out_of(part); }
  }
#if PACKED
#include "packed_lse.wgsl"
#else
#for x in 0..QR*HG
  if (lane == 0u && takes(row0 + $(x/HG)u)) { lse[(row0 + $(x/HG)u) * HEADS + head0 + $(x%HG)u] = all_m_$(x) + log(all_l_$(x)); }
#end
#endif
#endif
}
