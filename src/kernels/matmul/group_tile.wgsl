// Projections of one input in one dispatch, for GPUs and for shapes that the CPU kernels do not take; x (rows, k), W_s (n_s, k) one after the other in one storage:
//   three or two of them: y_s[m,n] = sum_k x[m,k] W_s[n,k] (LORA: + sum_r xa_s[m,r] B_s[n,r]) (BIAS: + bias_s[n])
//   ROPE, three (q, k, v): y_0 and y_1 turned by the rows' positions, as by rope/rope.wgsl after it; with per_row 1 y_1 and y_2 are in cache rows, as after rope_cache.wgsl
//   GATED, two (gate, up): y_0[m,n] = silu(g[m,n]) * u[m,n], g and u as above; silu as in elementwise/silu_gate.wgsl
//   DOWN, LoRA's first product: y_s[m,r] = alpha_s sum_k x[m,k] A_s[r,k], (n, k) each, from value w_s of the bank on; STACKED: adapters of several places lie below
//   each other in A (lora/stack.wgsl), and of a row that is of place p only what p's part gives stays, times scales[s per + p], as after lora/select_rows.wgsl
// B_s (n_s, rank) from value b_s of the bank on, bias_s from value c_s of its buffer on. The xa_s, which DOWN writes, lie in one buffer, from value s xa_stride on.
// So there are at most 8 storage buffers, 9 with NORM, BIAS and LORA, 2 more with ROPE (`takesNorm` and `takesRotary` say what an adapter binds). NORM: x is RMSNorm's input, normalised as it is loaded (norm_rows.wgsl).
// The register tile of tile.wgsl with its order of the sum, so its bits. GATED and ROPE, a thread owns as many columns of both members, or of both halves of heads, neighbours in its part of the tile.
#if DOWN
struct Params { rows: u32, k: u32, n: u32, w_0: u32, w_1: u32, w_2: u32, alpha_0: f32, alpha_1: f32, alpha_2: f32, xa_stride: u32, own: u32, width: u32, per: u32, eps: f32 }
#else
struct Params { rows: u32, k: u32, rank: u32, n_0: u32, n_1: u32, n_2: u32, b_0: u32, b_1: u32, b_2: u32, c_0: u32, c_1: u32, c_2: u32, xa_stride: u32, per_row: u32, eps: f32 }
#endif
@group(0) @binding(0) var<storage, read> x: array<f32>;
#if W_BF16
@group(0) @binding(1) var<storage, read> w: array<u32>;
#else
@group(0) @binding(1) var<storage, read> w: array<f32>;
#endif
#include "group_members.wgsl"
#if STACKED
@group(0) @binding(8) var<storage, read> places: array<u32>;
@group(0) @binding(9) var<storage, read> scales: array<f32>;
#include "../lora/stack.wgsl"
#endif
var<workgroup> a_tile: array<f32, $(16*TM)>;  // 16 deep x TM
var<workgroup> b_tile: array<f32, $(16*TN)>;
#if NORM
@group(0) @binding(10) var<storage, read> gain: array<f32>;
fn x_value(index: u32) -> f32 { return x[index]; }
#include "norm_rows.wgsl"
#endif

#if DOWN
fn width_of(s: u32) -> u32 { return p.n; }
fn w_at(s: u32, n: u32) -> u32 { return pick(s, p.w_0, p.w_1, p.w_2) + n * p.k; }
#else
fn width_of(s: u32) -> u32 { return pick(s, p.n_0, p.n_1, p.n_2); }
fn w_at(s: u32, n: u32) -> u32 { return (pick(s, 0u, p.n_0, p.n_0 + p.n_1) + n) * p.k; }
#endif
fn w_value(index: u32) -> f32 {
#if W_BF16
  let pair = w[index / 2u];
  return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, (index & 1u) == 1u));
#else
  return w[index];
#endif
}
fn finish(s: u32, i: u32, n: u32, value: f32) {
#if DOWN
#if STACKED
  let place = place_of(n);
  let kept = select(0.0, value * scales[s * p.per + place], places[i] == place);
#else
  let kept = value * bitcast<f32>(pick(s, bitcast<u32>(p.alpha_0), bitcast<u32>(p.alpha_1), bitcast<u32>(p.alpha_2)));
#endif
  y_0[s * p.xa_stride + i * p.n + n] = kept;
#else
  let at = i * width_of(s) + n;
#for o in 0..OUTPUTS-1
  if (s == $(o)u) { y_$(o)[at] = value; return; }
#end
  y_$(OUTPUTS-1)[at] = value;
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
#include "group_place.wgsl"
  let ti = (id / 16u) * $(TM/16)u;
  let tj = (id % 16u) * $(TN/16)u;
#if NORM
  scale_rows(i0, id);
#endif
#for r in 0..TM/16
#for v in 0..TN/64
  var acc$(r)_$(v) = vec4f();
#end
#end
  for (var t0 = 0u; t0 < p.k; t0 += 16u) {
    for (var e = id; e < $(16*TM)u; e += 256u) {
      let row = e / 16u;
      let t = t0 + e % 16u;
      var value = 0.0;
      if (i0 + row < p.rows && t < p.k) {
        value = x[(i0 + row) * p.k + t];
#if NORM
        value = value * row_scale[row] * gain[t];
#endif
      }
      a_tile[(e % 16u) * $(TM)u + row] = value;
    }
    for (var e = id; e < $(16*TN)u; e += 256u) {
      let j = e / 16u;
      let t = t0 + e % 16u;
      let column = column_of(n0, j);
      var value = 0.0;
      if (column.y < width && t < p.k) { value = w_value(w_at(s + column.x, column.y) + t); }
      b_tile[(e % 16u) * $(TN)u + j] = value;
    }
    workgroupBarrier();
#include "tile_step.wgsl"
    workgroupBarrier();
  }
#if LORA
  // 8 of the rank a turn: x A of the first member, below it that of the second where GATED.
  for (var r0 = 0u; r0 < p.rank; r0 += 8u) {
    for (var e = id; e < $((8+8*GATED)*TM)u; e += 256u) {
      let member = e / $(8*TM)u;
      let row = e / 8u % $(TM)u;
      var value = 0.0;
      if (i0 + row < p.rows) { value = xa[(s + member) * p.xa_stride + (i0 + row) * p.rank + r0 + e % 8u]; }
      a_tile[(8u * member + e % 8u) * $(TM)u + row] = value;
    }
    for (var e = id; e < $(8*TN)u; e += 256u) {
      let column = column_of(n0, e / 8u);
      var value = 0.0;
      if (column.y < width) { value = bank[pick(s + column.x, p.b_0, p.b_1, p.b_2) + column.y * p.rank + r0 + e % 8u]; }
      b_tile[(e % 8u) * $(TN)u + e / 8u] = value;
    }
    workgroupBarrier();
    for (var d = 0u; d < 8u; d++) {
      let b_at = d * $(TN)u + tj;
#for r in 0..TM/16
#for g in 0..1+GATED
      let a$(r)_$(g) = a_tile[(d + $(8*g)u) * $(TM)u + ti + $(r)u];
#end
#for v in 0..TN/64
      acc$(r)_$(v) = fma(
        vec4f(a$(r)_$(4*v*GATED*32/TN), a$(r)_$((4*v+1)*GATED*32/TN), a$(r)_$((4*v+2)*GATED*32/TN), a$(r)_$((4*v+3)*GATED*32/TN)),
        vec4f(b_tile[b_at + $(4*v)u], b_tile[b_at + $(4*v+1)u], b_tile[b_at + $(4*v+2)u], b_tile[b_at + $(4*v+3)u]), acc$(r)_$(v));
#end
#end
    }
    workgroupBarrier();
  }
#endif
#for r in 0..TM/16
#if PAIRED
#for q in 0..TN/32
  {
    let n = column_of(n0, tj + $(q)u).y;
    if (i0 + ti + $(r)u < p.rows && n < width) {
      var a = acc$(r)_$(q/4)[$(q%4)];
      var b = acc$(r)_$((q+TN/32)/4)[$((q+TN/32)%4)];
#if ROPE
#if BIAS
      a += bias[pick(s, p.c_0, p.c_1, p.c_2) + n];
      b += bias[pick(s, p.c_0, p.c_1, p.c_2) + n + HALF];
#endif
      finish_pair(s, i0 + ti + $(r)u, n, width, a, b);
#else
#if BIAS
      a += bias[p.c_0 + n];
      b += bias[p.c_1 + n];
#endif
      finish(0u, i0 + ti + $(r)u, n, a / (1.0 + exp(-a)) * b);
#endif
    }
  }
#end
#else
#for q in 0..TN/16
  if (i0 + ti + $(r)u < p.rows && n0 + tj + $(q)u < width) {
    var value = acc$(r)_$(q/4)[$(q%4)];
#if BIAS
    value += bias[pick(s, p.c_0, p.c_1, p.c_2) + n0 + tj + $(q)u];
#endif
    finish(s, i0 + ti + $(r)u, n0 + tj + $(q)u, value);
  }
#end
#endif
#end
}
