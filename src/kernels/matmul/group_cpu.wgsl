// Projections of one input in one dispatch, for CPU drivers with subgroups of LANES (8 or 16), with weights that lie in one storage:
//   three of them (q, k, v): y_s[m,n] = sum_k x[m,k] W_s[n,k] (LORA: + sum_r xa_s[m,r] B_s[n,r]) (BIAS: + bias_s[n])
//   GATED, two (gate, up): y_0[m,n] = silu(g[m,n]) * u[m,n], g and u as above; silu or GELU as in elementwise/silu_gate.wgsl; KEEP: y_1 = g and y_2 =
//       u are stored too
//   ROPE, three: y_0 and y_1 are rotated by the rows' positions, as rope/rope.wgsl would do afterwards; with per_row 1, y_1 and y_2 are in cache
//       rows, as after rope/rope_cache.wgsl
// x (rows, K) float32; W_s (n_s, K) one after the other in the storage; B_s (n_s, rank) from vec4 b_s of the bank on; bias_s from value c_s of its
// buffer on; xa_s (rows, rank); y_s (rows, n_s). K and rank are multiples of 8. X_TEX, ROWS_FIRST and row0 are as in nt_cpu.wgsl.
// A dispatch costs such a driver up to 30 us, and a narrow projection alone has too few workgroups for its threads. Each workgroup does for its
// member s what a workgroup of nt_cpu.wgsl (FEW: of nt_few_cpu.wgsl, for one or two rows) does, in the same order, so with the same bits. With GATED
// it owns SPAN * LANES columns of both members, so that their product needs no pass of its own.
// VEC2 and VEC4 are as in nt_cpu.wgsl, for all n_s; with ROPE, for the pairs that a lane has. KV_FOLD: y_1 and y_2 are caches in textures
// (kv_place.wgsl), and VEC2 or VEC4 holds.
struct Params { row0: u32, rows: u32, k: u32, rank: u32, w_fold: u32, w_texels: u32, n_0: u32, n_1: u32, n_2: u32, b_0: u32, b_1: u32, b_2: u32, c_0: u32, c_1: u32, c_2: u32, per_row: u32 }
#if X_TEX
@group(0) @binding(0) var x: texture_storage_2d<rgba32float, read>;
#else
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
#endif
#include "weight.wgsl"
#include "out.wgsl"
@group(0) @binding(2) var<storage, read_write> y_0: array<Out>;
#if GATED
#if KEEP
@group(0) @binding(3) var<storage, read_write> y_1: array<Out>;
@group(0) @binding(4) var<storage, read_write> y_2: array<Out>;
#endif
#else
#if KV_FOLD
@group(0) @binding(3) var y_1: texture_storage_2d<rgba32float, write>;
@group(0) @binding(4) var y_2: texture_storage_2d<rgba32float, write>;
#else
@group(0) @binding(3) var<storage, read_write> y_1: array<Out>;
@group(0) @binding(4) var<storage, read_write> y_2: array<Out>;
#endif
#endif
#if LORA
@group(0) @binding(5) var<storage, read> bank: array<vec4f>;
@group(0) @binding(6) var<storage, read> xa_0: array<vec4f>;
@group(0) @binding(7) var<storage, read> xa_1: array<vec4f>;
#if !GATED
@group(0) @binding(8) var<storage, read> xa_2: array<vec4f>;
#endif
#endif
#if BIAS
@group(0) @binding(9) var<storage, read> bias: array<f32>;
#endif
#if ROPE
// places: with per_row 1 (cache row, position) of each row; with 2 `info` as in attention/common.wgsl, which ends with the position. table: (cos,
// sin), (positions, HALF).
@group(0) @binding(10) var<storage, read> places: array<vec2u>;
#if VEC4
@group(0) @binding(11) var<storage, read> table: array<vec4f>;
#else
@group(0) @binding(11) var<storage, read> table: array<vec2f>;
#endif
#include "group_turn_cpu.wgsl"
#endif

#if GATED
alias E = f32;
#include "gelu.wgsl"
#endif
#include "pick.wgsl"
#if LORA
fn xa_of(s: u32, at: u32) -> vec4f {
  if (s == 0u) { return xa_0[at]; }
#if !GATED
  if (s == 2u) { return xa_2[at]; }
#endif
  return xa_1[at];
}
#endif

#include "layout_cpu.wgsl"

#include "nt_cpu_rows.wgsl"

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#if ROWS_FIRST
  let m0 = p.row0 + group.x * $(MT)u;
  let turn = group.y;
#else
  let m0 = p.row0 + group.y * $(MT)u;
  let turn = group.x;
#endif
#if GATED
  let s = 0u;
  let n0 = turn * $(SPAN*LANES)u;
#else
  // Workgroups (columns) from g1 on are of member 1, from g2 on of member 2.
  let g1 = (p.n_0 + $(SPAN*LANES-1)u) / $(SPAN*LANES)u;
  let g2 = g1 + (p.n_1 + $(SPAN*LANES-1)u) / $(SPAN*LANES)u;
#if KV_FOLD
  // Alternate between both ends: each of the driver's threads gets one contiguous part of the workgroups, and the last workgroups, which store
  // texels, take nearly twice as long.
  let last = g2 + (p.n_2 + $(SPAN*LANES-1)u) / $(SPAN*LANES)u - 1u;
  let tile = select(turn / 2u, last - turn / 2u, turn % 2u == 1u);
#else
  let tile = turn;
#endif
  let s = u32(tile >= g1) + u32(tile >= g2);
  let n0 = (tile - pick(s, 0u, g1, g2)) * $(SPAN*LANES)u;
#endif
  let n = pick(s, p.n_0, p.n_1, p.n_2);
#if ROPE
  // The upper half of a tile's columns lies HALF after the lower half in the same heads, so that one invocation has both values of each RoPE pair.
#for j in 0..NT/2
  let pair$(j) = n0 / 2u + $(NT/2)u * lane + $(j)u;
  let turn_at$(j) = min(pair$(j), n / 2u - 1u) % HALF;
  let col$(j) = min(pair$(j), n / 2u - 1u) / HALF * 2u * HALF + turn_at$(j);
  let col$(j+NT/2) = col$(j) + HALF;
#end
#else
#for j in 0..SPAN
  let col$(j) = min(n0 + $(SPAN)u * lane + $(j)u, n - 1u);
#end
#endif
#for j in 0..NT
  let at$(j) = w_origin(pick(s + $(j/SPAN)u, 0u, p.n_0, p.n_0 + p.n_1) + col$(j%SPAN));
#end
#for i in 0..(2*MT+LANES-1)/LANES
  let row$(i) = min(m0 + $(i*LANES/2)u + lane / 2u, p.rows - 1u);
  let x_row$(i) = x_row(row$(i));
#end
  let end = well_laid(min(m0 + $(MT)u, p.rows), lane);
#for r in 0..MT
#for j in 0..NT
  var acc_$(r)_$(j) = 0.0;
#end
#end
#if FEW
  // As in nt_few_cpu.wgsl.
  let row = lane % 8u / $(8/MT)u;
  let part = lane % $(8/MT)u;
#include "nt_few_loop.wgsl"
#else
#include "nt_cpu_loop.wgsl"
#endif
#if LORA
  for (var c = 0u; c < p.rank / 8u; c++) {
#for g in 0..NT/SPAN
#for i in 0..(2*MT+LANES-1)/LANES
    var xa$(g)_$(i) = vec4f();
#end
#end
    // A loop, and one that ends with !=, for the reasons given in lora_b.wgsl.
    for (var i = 0u; i != min($((2*MT+LANES-1)/LANES)u, p.k); i++) {
      var row = row0;
#for i in 1..(2*MT+LANES-1)/LANES
      row = select(row, row$(i), i == $(i)u);
#end
      let at = row * (p.rank / 4u) + lane % 2u + 2u * c;
#for g in 0..NT/SPAN
      let xa$(g) = xa_of(s + $(g)u, at);
#for i in 0..(2*MT+LANES-1)/LANES
      xa$(g)_$(i) = select(xa$(g)_$(i), xa$(g), i == $(i)u);
#end
#end
    }
    // If rows have different adapters, xa of these rows may be all 0 for this part of the rank; it is then skipped. One OR of bits, as subgroupAny
    // would go through lanes and values.
    var here = vec4u();
#for g in 0..NT/SPAN
#for i in 0..(2*MT+LANES-1)/LANES
    here |= bitcast<vec4u>(xa$(g)_$(i));
#end
#end
    if ((subgroupOr(here.x | here.y | here.z | here.w) & 0x7fffffffu) == 0u) { continue; }
#for j in 0..NT
    let b_at$(j) = pick(s + $(j/SPAN)u, p.b_0, p.b_1, p.b_2) + col$(j%SPAN) * (p.rank / 4u) + 2u * c;
#end
#include "lora_b.wgsl"
#for r in 0..MT
    {
#for j in 0..NT
      var t$(j) = 0.0;
#end
#for q in 0..8
#for g in 0..NT/SPAN
      let v$(q)_$(g) = subgroupBroadcast(xa$(g)_$(2*r/LANES)[$(q%4)], $(2*r%LANES+q/4)u);
#end
#for j in 0..NT
      t$(j) = fma(v$(q)_$(j/SPAN), b$(j)_$(q/4)[$(q%4)], t$(j));
#end
#end
#for j in 0..NT
      acc_$(r)_$(j) += t$(j);
#end
    }
#end
  }
#endif
#if BIAS
#for j in 0..NT
  let bias$(j) = bias[pick(s + $(j/SPAN)u, p.c_0, p.c_1, p.c_2) + col$(j%SPAN)];
#end
#endif
  // One row per iteration: unrolled, stores were most of what the driver compiled (1.5 s of 4), and selecting a row of the accumulators costs next to
  // nothing.
  for (var row = m0; row < end; row++) {
#for j in 0..NT
    var out_$(j) = acc_0_$(j);
#for r in 1..MT
    out_$(j) = select(out_$(j), acc_$(r)_$(j), row == m0 + $(r)u);
#end
#if BIAS
    out_$(j) += bias$(j);
#endif
#end
#if ROPE
    let place = places[row * p.per_row + p.per_row - 1u];
    let to_row = select(place.x, row, s == 0u || p.per_row == 2u);
#let V = 1+VEC2+3*VEC4
#for v in 0..NT/2/V
    {
#if VEC4
      var pairs = Pairs(vec4f(out_$(4*v), out_$(4*v+1), out_$(4*v+2), out_$(4*v+3)),
        vec4f(out_$(4*v+NT/2), out_$(4*v+1+NT/2), out_$(4*v+2+NT/2), out_$(4*v+3+NT/2)));
#else
#if VEC2
      var pairs = Pairs(vec2f(out_$(2*v), out_$(2*v+1)), vec2f(out_$(2*v+NT/2), out_$(2*v+1+NT/2)));
#else
      var pairs = Pairs(out_$(v), out_$(v+NT/2));
#endif
#endif
      if (s != 2u) { pairs = turned(place.y * HALF + turn_at$(V*v), pairs); }
      let there = pair$(V*v) < n / 2u;
      let at = (to_row * n + col$(V*v)) / $(V)u;
      let apart = HALF / $(V)u;
      if (there && s == 0u) {
        y_0[at] = pairs.lower;
        y_0[at + apart] = pairs.upper;
      }
#if KV_FOLD
#if VEC4
      if (there && s != 0u) {
        put_texel(s, to_row, col$(4*v), pairs.lower);
        put_texel(s, to_row, col$(4*v) + HALF, pairs.upper);
      }
#else
      if (s != 0u) {
        // Two lanes together have one texel of the lower half and one of the upper half: each stores one of them.
        let lower_of_other = subgroupShuffle(pairs.lower, lane ^ 1u);
        let upper_of_other = subgroupShuffle(pairs.upper, lane ^ 1u);
        let odd = lane % 2u == 1u;
        let texel = select(vec4f(pairs.lower, lower_of_other), vec4f(upper_of_other, pairs.upper), odd);
        if (there) { put_texel(s, to_row, select(col$(2*v), col$(2*v) - 2u + HALF, odd), texel); }
      }
#endif
#else
      if (there && s == 1u) {
        y_1[at] = pairs.lower;
        y_1[at + apart] = pairs.upper;
      }
      if (there && s == 2u) {
        y_2[at] = pairs.lower;
        y_2[at + apart] = pairs.upper;
      }
#endif
    }
#end
#else
#if GATED
#if KEEP
#for j in 0..SPAN
    let gate_$(j) = out_$(j);
#end
#endif
    // All gates before the first store. Each gate is a dependency chain of some 100 cycles, and a store of 8 lanes is so much code that the next
    // chain would not begin meanwhile.
#for j in 0..SPAN
    out_$(j) = out_$(j) / (1.0 + exp(-steep(out_$(j)))) * out_$(j+SPAN);
#end
#endif
#let V = 1+VEC2+3*VEC4
#for v in 0..SPAN/V
    if (n0 + $(SPAN)u * lane + $(V*v)u < n) {
      let at = (row * n + col$(V*v)) / $(V)u;
#if VEC4
      let out = vec4f(out_$(4*v), out_$(4*v+1), out_$(4*v+2), out_$(4*v+3));
#else
#if VEC2
      let out = vec2f(out_$(2*v), out_$(2*v+1));
#else
      let out = out_$(v);
#endif
#endif
#if GATED
      y_0[at] = out;
#if KEEP
#if VEC4
      y_1[at] = vec4f(gate_$(4*v), gate_$(4*v+1), gate_$(4*v+2), gate_$(4*v+3));
      y_2[at] = vec4f(out_$(4*v+SPAN), out_$(4*v+1+SPAN), out_$(4*v+2+SPAN), out_$(4*v+3+SPAN));
#else
#if VEC2
      y_1[at] = vec2f(gate_$(2*v), gate_$(2*v+1));
      y_2[at] = vec2f(out_$(2*v+SPAN), out_$(2*v+1+SPAN));
#else
      y_1[at] = gate_$(v);
      y_2[at] = out_$(v+SPAN);
#endif
#endif
#endif
#else
      if (s == 0u) { y_0[at] = out; }
      else if (s == 1u) { y_1[at] = out; }
      else { y_2[at] = out; }
#endif
    }
#end
#endif
  }
}
