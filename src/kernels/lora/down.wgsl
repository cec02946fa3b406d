// The first of LoRA's two products on GPUs, for up to three projections of one input: xa_s[m,r] = alpha_s * sum_k x[m,k] A_s[r,k].
// x (rows, k), A_s (rank, k) from value w_s of the bank on, xa_s (rows, rank) from value s xa_stride on. k and each w_s are multiples of 4, rank of
// 8.
// STACKED: several adapters are stacked along the rank of A_s (stack.wgsl). A row of adapter p keeps only p's part, times scales[first + s per + p],
// and 0 for the rest, as after select_rows.wgsl.
// With so few columns, a register tile would leave seven of eight threads idle; the time is that of reading x once. A workgroup owns ROWS rows and
// COLUMNS of the rank. Its threads split k, four neighbouring values each, and their partial sums are added up at the end (thin_sum.wgsl). A comes
// from the caches.
// Order of the sum: thread l sums groups l, l + THREADS, .. of four values one after the other, then the threads are summed in a tree. It depends on
// k alone. AHEAD iterations are loaded at once. EXACT: k is a multiple of what those take, so no load is checked against the end.
// Other outputs for which x is needed: NORM: x (x_values as single values) is the input of RMSNorm, which each workgroup normalises for its rows
// (norm_rows.wgsl), and `normed` (rows, k) receives the result. F16: `half` (rows, k) receives the product's input in f16, for matrix units. Both are
// written by the workgroups that have the first columns of the first member.
struct Params { rows: u32, k: u32, rank: u32, w_0: u32, w_1: u32, w_2: u32, alpha_0: f32, alpha_1: f32, alpha_2: f32, xa_stride: u32, own: u32, width: u32, per: u32, first: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> bank: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> xa: array<f32>;
#if STACKED
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<f32>;
#include "stack.wgsl"
#endif
#if NORM
@group(0) @binding(5) var<storage, read> gain: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> normed: array<vec4f>;
@group(0) @binding(8) var<storage, read> x_values: array<f32>;
fn x_value(index: u32) -> f32 { return x_values[index]; }
#include "norm_rows.wgsl"
#endif
#if F16
@group(0) @binding(7) var<storage, read_write> half: array<vec2u>;
#include "narrow.wgsl"
#endif
#include "pick.wgsl"
// Finishes value e of the workgroup whose member, first row and first column are `at`.
fn finish(at: vec3u, e: u32, value: f32) {
  let i = at.y + e / COLUMNS;
  let n = at.z + e % COLUMNS;
  if (i >= p.rows) { return; }
#if STACKED
  let place = place_of(n);
  // A select, not a multiplication by 0: another adapter's value for this row may be NaN.
  let kept = select(0.0, value * scales[p.first + at.x * p.per + place], places[i] == place);
#else
  let kept = value * bitcast<f32>(pick(at.x, bitcast<u32>(p.alpha_0), bitcast<u32>(p.alpha_1), bitcast<u32>(p.alpha_2)));
#endif
  xa[at.x * p.xa_stride + i * p.rank + n] = kept;
}
#include "thin_memory.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  // Members and columns of the same rows follow each other, so that x is in a cache for all but the first.
  let blocks = p.rank / COLUMNS;
  let at = vec3u(group.x / blocks, group.y * ROWS, group.x % blocks * COLUMNS);
  let quads = p.k / 4u;
#if NORM
  scale_rows(at.y, id);
#endif
#let LEAVES = NORM + F16
#if LEAVES
  let leaves = at.x == 0u && at.z == 0u;
#endif
#for r in 0..ROWS
  let x_at$(r) = min(at.y + $(r)u, p.rows - 1u) * quads;
#end
  let a_at = pick(at.x, p.w_0, p.w_1, p.w_2) / 4u + at.z * quads;
#for v in 0..ROWS*COLUMNS
  var acc$(v) = 0.0;
#end
  for (var t0 = id; t0 < quads; t0 += $(AHEAD*THREADS)u) {
#for u in 0..AHEAD
    let t$(u) = t0 + $(u*THREADS)u;
#for r in 0..ROWS
    var x$(u)_$(r) = vec4f();
#end
#if NORM
    var gain$(u) = vec4f();
#endif
#if !EXACT
    if (t$(u) < quads) {
#endif
#for r in 0..ROWS
    x$(u)_$(r) = x[x_at$(r) + t$(u)];
#end
#if NORM
    gain$(u) = gain[t$(u)];
#endif
#if !EXACT
    }
#endif
#end
#for u in 0..AHEAD
#if !EXACT
    if (t$(u) < quads) {
#else
    {
#endif
#if NORM
#for r in 0..ROWS
      x$(u)_$(r) = x$(u)_$(r) * row_scale[$(r)] * gain$(u);
#end
#endif
#if LEAVES
      if (leaves) {
#for r in 0..ROWS
        if (at.y + $(r)u < p.rows) {
#if NORM
          normed[x_at$(r) + t$(u)] = x$(u)_$(r);
#endif
#if F16
          half[x_at$(r) + t$(u)] = narrow(x$(u)_$(r));
#endif
        }
#end
      }
#endif
#for c in 0..COLUMNS
      let a$(c) = bank[a_at + $(c)u * quads + t$(u)];
#end
#for q in 0..4
#for r in 0..ROWS
#for c in 0..COLUMNS
      acc$(r*COLUMNS+c) = fma(x$(u)_$(r)[$(q)], a$(c)[$(q)], acc$(r*COLUMNS+c));
#end
#end
#end
    }
#end
  }
#for v in 0..ROWS*COLUMNS
  let v0_$(v) = acc$(v);
#end
#include "thin_sum.wgsl"
}
