// The three products of a linear layer, for GPUs, and for shapes that the CPU kernels do not take:
//   FORM_NT: y[m,n] = sum_k x[m,k] W[n,k]     FORM_TN: dW[n,k] = sum_m dy[m,n] x[m,k]     else (NN): dx[m,k] = sum_n dy[m,n] W[n,k]
// all times alpha. LORA continues the sum over the rank (NT: xa, B; NN: dxa, A). BIAS is added before alpha, RESIDUAL after
// it by fma. ACCUMULATE adds to what is there.
// `a` is x or dy (float32). `b` is x for TN, else W: bf16 pairs, float32, or with W_BLOCKS a GGUF's blocks, whose two-byte scales begin at word
// `scales`. Any sizes. VEC: all strides, offsets and row lengths are multiples of 4, and four values are read and written at once.
// Register tile (tile_turns.wgsl): a workgroup owns TM x TN outputs, a thread RM x RN of them; both operands pass through workgroup memory in
// K-blocks of KT.
// Order of the sum: t = 0 .. depth-1, one accumulator per output, whatever the number of rows and the tile.
// SPLIT_K: a workgroup takes that many steps of the depth (a multiple of KT), and its partial sums go to a matrix of their own: out is (parts, rows,
// columns).
// Slices: a starts at column a_column of rows that are a_stride apart, b at row b_row of rows b_stride apart, out at row out_row and column
// out_column. NT: column j of the slice is row first_row + j of the whole W, so of B and of bias.
struct Params { rows: u32, columns: u32, depth: u32, rank: u32, a_stride: u32, a_column: u32, b_stride: u32, b_row: u32, out_stride: u32, out_row: u32, out_column: u32, first_row: u32, scales: u32, alpha: f32 }
#if VEC
alias Value = vec4f;
alias Bf16 = vec2u;
#else
alias Value = f32;
alias Bf16 = u32;
#endif
@group(0) @binding(0) var<storage, read> a: array<Value>;
@group(0) @binding(1) var<storage, read_write> out: array<Value>;
#if W_BLOCKS
@group(0) @binding(2) var<storage, read> b: array<u32>;
#else
#if W_BF16
@group(0) @binding(2) var<storage, read> b: array<Bf16>;
#else
@group(0) @binding(2) var<storage, read> b: array<Value>;
#endif
#endif
#if LORA
@group(0) @binding(3) var<storage, read> lora_x: array<f32>;
@group(0) @binding(4) var<storage, read> lora_w: array<f32>;
#endif
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<Value>;
#endif
#if RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<Value>;
#endif
#include "tile_memory.wgsl"

#if FEW
// Where row i of a, and row j of b, begins. Past the end: the last row, whose sums are not stored.
fn a_begin(i: u32) -> u32 { return (min(i, p.rows - 1u) * p.a_stride + p.a_column) / 4u; }
#if !W_BLOCKS
fn b_begin(j: u32) -> u32 { return (p.b_row + min(j, p.columns - 1u)) * p.b_stride / 4u; }
#endif
#endif
#if VEC
// The bits of row i of a at steps t .. t+3; for TN, of rows i .. i+3 at step t. Zeros past the end.
fn a_quad(i: u32, t: u32) -> vec4u {
  if (i >= p.rows || t >= p.depth) { return vec4u(); }
#if FORM_TN
  return a_take((t * p.a_stride + p.a_column + i) / 4u);
#else
  return a_take((i * p.a_stride + p.a_column + t) / 4u);
#endif
}
// The same for b, as stored: for NT, row j at steps t .. t+3; else rows j .. j+3 at step t.
#if W_BLOCKS
fn word_of(which: u32, at: u32) -> u32 { return b[at]; }
fn b_quad(j: u32, t: u32) -> Words {
  if (j >= p.columns || t >= p.depth) { return Words(); }
#if FORM_NT
  return words_at(0u, p.b_row + j, p.b_stride, t, p.scales);
#else
  return words_at(0u, p.b_row + t, p.b_stride, j, p.scales);
#endif
}
#else
fn b_quad(j: u32, t: u32) -> vec4u {
  if (j >= p.columns || t >= p.depth) { return vec4u(); }
#if FORM_NT
  let at = ((p.b_row + j) * p.b_stride + t) / 4u;
#else
  let at = ((p.b_row + t) * p.b_stride + j) / 4u;
#endif
  return b_take(at);
}
#endif
#else
fn a_value(i: u32, t: u32) -> f32 {
  if (i >= p.rows || t >= p.depth) { return 0.0; }
#if FORM_TN
  return a[t * p.a_stride + p.a_column + i];
#else
  return a[i * p.a_stride + p.a_column + t];
#endif
}
fn b_value(j: u32, t: u32) -> f32 {
  if (j >= p.columns || t >= p.depth) { return 0.0; }
#if FORM_NT
  let at = (p.b_row + j) * p.b_stride + t;
#else
  let at = (p.b_row + t) * p.b_stride + j;
#endif
  return b_take(at);
}
#endif
#if LORA
fn low_depth() -> u32 { return p.rank; }
fn low_a(i: u32, r: u32) -> f32 {
  if (i >= p.rows || r >= p.rank) { return 0.0; }
  return lora_x[i * p.rank + r];
}
fn low_b(j: u32, r: u32) -> f32 {
  if (j >= p.columns || r >= p.rank) { return 0.0; }
#if FORM_NT
  return lora_w[(p.first_row + j) * p.rank + r];
#else
  return lora_w[r * p.columns + j];
#endif
}
#endif
// Column j of row i, or with VEC columns j .. j+3.
fn put(out_row: u32, i: u32, j: u32, sum: Value) {
  if (i >= p.rows || j >= p.columns) { return; }
  let at = ((out_row + i) * p.out_stride + p.out_column + j) / $(1+3*VEC)u;
#if BIAS
  let all = sum + bias[(p.first_row + j) / $(1+3*VEC)u];
#else
  let all = sum;
#endif
#if RESIDUAL
  let value = fma(all, Value(p.alpha), residual[at]);
#else
  let value = all * p.alpha;
#endif
#if ACCUMULATE
  out[at] += value;
#else
  out[at] = value;
#endif
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
  let j0 = group.x * $(TN)u;
#if SPLIT_K
  let begin = group.z * SPLIT_K;
  let end = min(begin + SPLIT_K, p.depth);
  let out_row = group.z * p.rows;
#else
  let begin = 0u;
  let end = p.depth;
  let out_row = p.out_row;
#endif
#if FEW
#include "few_turns.wgsl"
#else
#include "tile_turns.wgsl"
#endif
#if VEC
#for r in 0..RM
#for v in 0..RN/4
  put(out_row, i0 + row_from + $((r-r%4)*TM/RM+r%4)u, j0 + column_from + $(4*v*TN/RN)u, acc$(r)_$(v));
#end
#end
#else
  var sums: array<vec4f, $(RM*RN/4)>;
#for r in 0..RM
#for v in 0..RN/4
  sums[$(r*RN/4+v)] = acc$(r)_$(v);
#end
#end
  for (var e = 0u; e < $(RM*RN)u; e++) {
    let r = e / $(RN)u;
    let c = e % $(RN)u;
    put(out_row, i0 + row_from + r / 4u * $(4*TM/RM)u + r % 4u, j0 + column_from + c / 4u * $(4*TN/RN)u + c % 4u, sums[e / 4u][c % 4u]);
  }
#endif
}
