// Projections of one input in one dispatch, for GPUs, and for shapes that the CPU kernels do not take. x (rows, k), W_s (n_s, k) one after the other
// in one storage.
//   three or two of them: y_s[m,n] = sum_k x[m,k] W_s[n,k] (LORA: + sum_r xa_s[m,r] B_s[n,r]) (BIAS: + bias_s[n])
//   ROPE, three (q, k, v): y_0 and y_1 are rotated by the rows' positions, as rope/rope.wgsl would do afterwards; with per_row 1, y_1 and y_2 are in
//       cache rows, as after rope_cache.wgsl
//   GATED, two (gate, up): y_0[m,n] = silu(g[m,n]) * u[m,n], g and u as above; silu or GELU as in elementwise/silu_gate.wgsl
//   DOWN, LoRA's first product: y_s[m,r] = alpha_s sum_k x[m,k] A_s[r,k], A_s (n, k) from value w_s of the bank on. STACKED: several adapters are
//       stacked along A's rank (lora/stack.wgsl); a row of adapter p keeps only p's part, times scales[s per + p], and 0 for the rest, as after
//       lora/select_rows.wgsl
// B_s (n_s, rank) from value b_s of the bank on, bias_s from value c_s of its buffer on. The xa_s, which DOWN writes, lie in one buffer, each from
// value s xa_stride on.
// W_BLOCKS: each W_s is given as blocks of one GGUF format, in a storage of its own. NORM: x is the input of RMSNorm and is normalised as it is
// loaded (norm_rows.wgsl).
// Storage buffers: at most 8, or 9 with NORM, BIAS and LORA; 2 more with ROPE (`takesNorm` and `takesRotary` ask what the adapter binds), and with
// W_BLOCKS one more for each member but the first (`blocksOf`).
// The register tile and order of the sum are those of tile.wgsl (tile_turns.wgsl), so the bits are too. VEC: k, and where matrices begin, are
// multiples of 4. With GATED and ROPE, a thread owns the same number of columns of both members, or of both halves of heads.
#if DOWN
struct Params { rows: u32, k: u32, n: u32, w_0: u32, w_1: u32, w_2: u32, alpha_0: f32, alpha_1: f32, alpha_2: f32, xa_stride: u32, own: u32, width: u32, per: u32 }
#else
struct Params { rows: u32, k: u32, rank: u32, n_0: u32, n_1: u32, n_2: u32, b_0: u32, b_1: u32, b_2: u32, c_0: u32, c_1: u32, c_2: u32, xa_stride: u32, per_row: u32, eps: f32 }
#endif
#if VEC
alias Value = vec4f;
alias Bf16 = vec2u;
#else
alias Value = f32;
alias Bf16 = u32;
#endif
@group(0) @binding(0) var<storage, read> a: array<Value>;
#if W_BLOCKS
@group(0) @binding(1) var<storage, read> b: array<u32>;
#for s in 1..W_BLOCKS
@group(0) @binding($(12+s)) var<storage, read> w_$(s): array<u32>;
#end
#else
#if W_BF16
@group(0) @binding(1) var<storage, read> b: array<Bf16>;
#else
@group(0) @binding(1) var<storage, read> b: array<Value>;
#endif
#endif
#include "group_members.wgsl"
#if STACKED
@group(0) @binding(8) var<storage, read> places: array<u32>;
@group(0) @binding(9) var<storage, read> scales: array<f32>;
#include "../lora/stack.wgsl"
#endif
#if NORM
@group(0) @binding(10) var<storage, read> gain: array<Value>;
#if VEC
fn x_value(index: u32) -> f32 { return a[index / 4u][index % 4u]; }
fn gain_quad(t: u32) -> vec4f {
  if (t >= p.k) { return vec4f(); }
  return gain[t / 4u];
}
#else
fn x_value(index: u32) -> f32 { return a[index]; }
#endif
#include "norm_rows.wgsl"
#endif
#include "tile_memory.wgsl"
// This workgroup's member, the first column that it has there, and that member's width.
var<private> own: vec3u;

#if DOWN
fn width_of(s: u32) -> u32 { return p.n; }
fn w_at(s: u32, n: u32) -> u32 { return pick(s, p.w_0, p.w_1, p.w_2) + n * p.k; }
#else
fn width_of(s: u32) -> u32 { return pick(s, p.n_0, p.n_1, p.n_2); }
fn w_at(s: u32, n: u32) -> u32 { return (pick(s, 0u, p.n_0, p.n_0 + p.n_1) + n) * p.k; }
#endif
#if FEW
// As in tile.wgsl.
fn a_begin(i: u32) -> u32 { return min(i, p.rows - 1u) * p.k / 4u; }
#if !W_BLOCKS
fn b_begin(j: u32) -> u32 {
  let column = column_of(own.y, j);
  return w_at(own.x + column.x, min(column.y, own.z - 1u)) / 4u;
}
#endif
#endif
#if VEC
fn a_quad(i: u32, t: u32) -> vec4u {
  if (i >= p.rows || t >= p.k) { return vec4u(); }
  return a_take((i * p.k + t) / 4u);
}
#if W_BLOCKS
fn word_of(which: u32, at: u32) -> u32 {
#for s in 1..W_BLOCKS
  if (which == $(s)u) { return w_$(s)[at]; }
#end
  return b[at];
}
fn b_quad(j: u32, t: u32) -> Words {
  let column = column_of(own.y, j);
  if (column.y >= own.z || t >= p.k) { return Words(); }
  let s = own.x + column.x;
  return words_at(s, column.y, p.k, t, width_of(s) * (p.k / $(VALUES)u) * $(WORDS)u);
}
#else
fn b_quad(j: u32, t: u32) -> vec4u {
  let column = column_of(own.y, j);
  if (column.y >= own.z || t >= p.k) { return vec4u(); }
  let at = (w_at(own.x + column.x, column.y) + t) / 4u;
  return b_take(at);
}
#endif
#else
fn a_value(i: u32, t: u32) -> f32 {
  if (i >= p.rows || t >= p.k) { return 0.0; }
#if NORM
  return a[i * p.k + t] * row_scale[i % $(TM)u] * gain[t];
#else
  return a[i * p.k + t];
#endif
}
fn b_value(j: u32, t: u32) -> f32 {
  let column = column_of(own.y, j);
  if (column.y >= own.z || t >= p.k) { return 0.0; }
  let at = w_at(own.x + column.x, column.y) + t;
  return b_take(at);
}
#endif
#if LORA
// With GATED, the ranks of both members follow each other: low_b is 0 for the rank of the other member.
fn low_depth() -> u32 { return p.rank * $(1+GATED)u; }
fn low_a(i: u32, r: u32) -> f32 {
  if (i >= p.rows || r >= low_depth()) { return 0.0; }
  return xa[(own.x + r / p.rank) * p.xa_stride + i * p.rank + r % p.rank];
}
fn low_b(j: u32, r: u32) -> f32 {
  let column = column_of(own.y, j);
  if (column.y >= own.z || r / p.rank != column.x) { return 0.0; }
  return bank[pick(own.x + column.x, p.b_0, p.b_1, p.b_2) + column.y * p.rank + r % p.rank];
}
#endif
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

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
#include "group_place.wgsl"
  own = vec3u(s, n0, width);
#if NORM
  scale_rows(i0, id);
#endif
  let j0 = 0u;
  let begin = 0u;
  let end = p.k;
#if FEW
#include "few_turns.wgsl"
#else
#include "tile_turns.wgsl"
#endif
#for r in 0..RM
  {
  let i = i0 + row_from + $((r-r%4)*TM/RM+r%4)u;
#if PAIRED
#for q in 0..RN/2
  {
    let n = column_of(n0, column_from + $(q)u).y;
    if (i < p.rows && n < width) {
      var a = acc$(r)_$(q/4)[$(q%4)];
      var b = acc$(r)_$((q+RN/2)/4)[$((q+RN/2)%4)];
#if ROPE
#if BIAS
      a += bias[pick(s, p.c_0, p.c_1, p.c_2) + n];
      b += bias[pick(s, p.c_0, p.c_1, p.c_2) + n + HALF];
#endif
      finish_pair(s, i, n, width, a, b);
#else
#if BIAS
      a += bias[p.c_0 + n];
      b += bias[p.c_1 + n];
#endif
      finish(0u, i, n, a / (1.0 + exp(-steep(a))) * b);
#endif
    }
  }
#end
#else
#for v in 0..RN/4
#for q in 0..4
  {
    let n = n0 + column_from + $(4*v*TN/RN+q)u;
    if (i < p.rows && n < width) {
      var value = acc$(r)_$(v)[$(q)];
#if BIAS
      value += bias[pick(s, p.c_0, p.c_1, p.c_2) + n];
#endif
      finish(s, i, n, value);
    }
  }
#end
#end
#endif
  }
#end
}
