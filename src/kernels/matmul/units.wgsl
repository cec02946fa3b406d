// Matmul on matrix units, f16 x f16 -> f32, for GPUs that have them (`chromium-experimental-subgroup-matrix`): forward product and gradient of the
// input.
//   FORM_NT: y[m,n] = sum_k x[m,k] W[n,k]     else (NN): dx[m,k] = sum_n dy[m,n] W[n,k]
// times alpha. LORA continues the sum over the rank in float32 (NT: xa, B; NN: dxa, A). BIAS is added before alpha, RESIDUAL after it. ACCUMULATE
// adds to what is there.
// `a` is x or dy as units_stage.wgsl writes it: in f16, times a power of two that out_scale divides out again, with zeros after the depth up to a
// multiple of KT. `b` is W, also in f16 (Weight.f16). Both have eight values per vec4u, and the length of W's rows is a multiple of 8 too.
// A workgroup of SM x SN subgroups owns TM x TN outputs; both operands pass through workgroup memory as f16 in K-blocks of KT (units_turns.wgsl); a
// subgroup multiplies fragments of FM x FN x FK. SPLIT_K: a workgroup takes that many steps of the depth (a multiple of KT), and its result goes to a
// matrix of its own: out is (parts, rows, columns).
// Order of the sum: fragments of FK along the depth, one after another, for every tile and number of rows; within a fragment, the unit's own order.
struct Params { rows: u32, columns: u32, depth: u32, rank: u32, a_stride: u32, b_stride: u32, b_row: u32, out_stride: u32, out_column: u32, first_row: u32, alpha: f32, out_scale: f32 }
@group(0) @binding(0) var<storage, read> a: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<vec4u>;
#if LORA
@group(0) @binding(3) var<storage, read> lora_x: array<vec4f>;
#if FORM_NT
@group(0) @binding(4) var<storage, read> lora_w: array<vec4f>;
#else
@group(0) @binding(4) var<storage, read> lora_w: array<f32>;
#endif
#endif
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#if RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif
#include "units_memory.wgsl"

// Epilogue of a fragment that lies in `scratch` from `start` on and begins at row i and column j of the output: a lane has one of its columns, in
// rows LANES/FN apart.
fn finish(out_row: u32, i: u32, j: u32, start: u32, lane: u32) {
  let column = j + lane % $(FN)u;
#for q in 0..FM*FN/LANES
  let row_$(q) = i + lane / $(FN)u + $(q*LANES/FN)u;
  var value_$(q) = scratch[start + lane + $(q*LANES)u] * p.out_scale;
#end
#if LORA
  let known = min(column, p.columns - 1u);
  for (var r = 0u; r < p.rank / 4u; r++) {
#if FORM_NT
    let high = lora_w[(p.first_row + known) * p.rank / 4u + r];
#else
    let high = vec4f(lora_w[4u * r * p.columns + known], lora_w[(4u * r + 1u) * p.columns + known], lora_w[(4u * r + 2u) * p.columns + known], lora_w[(4u * r + 3u) * p.columns + known]);
#endif
#for q in 0..FM*FN/LANES
    let low_$(q) = lora_x[min(row_$(q), p.rows - 1u) * p.rank / 4u + r];
#for c in 0..4
    value_$(q) = fma(low_$(q)[$(c)], high[$(c)], value_$(q));
#end
#end
  }
#endif
  if (column >= p.columns) { return; }
#for q in 0..FM*FN/LANES
  if (row_$(q) < p.rows) {
    let at = (out_row + row_$(q)) * p.out_stride + p.out_column + column;
#if BIAS
    value_$(q) += bias[p.first_row + column];
#endif
#if RESIDUAL
    let value = fma(value_$(q), p.alpha, residual[at]);
#else
    let value = value_$(q) * p.alpha;
#endif
#if ACCUMULATE
    out[at] += value;
#else
    out[at] = value;
#endif
  }
#end
}

// For units_memory.wgsl: the depth of W, and where a row or column of it begins, in vectors of eight. Past the end: the last one, whose sums are not
// stored.
fn b_depth() -> u32 { return p.depth; }
#if FORM_NT
fn b_row(j: u32) -> u32 { return (p.b_row + min(j, p.columns - 1u)) * p.b_stride / 8u; }
#else
fn b_column(j: u32) -> u32 { return min(j, p.columns - 8u) / 8u; }
fn b_step(t: u32) -> u32 { return (p.b_row + t) * p.b_stride / 8u; }
#endif

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
  let out_row = 0u;
#endif
#include "units_turns.wgsl"
#for i in 0..TM/SM/FM
#for j in 0..TN/SN/FN
  subgroupMatrixStore<row_major>(&scratch, subgroup * $(FM*FN)u, acc_$(i)_$(j), $(FN)u);
  workgroupBarrier();
  finish(out_row, i0 + si + $(i*FM)u, j0 + sj + $(j*FN)u, subgroup * $(FM*FN)u, lane);
  workgroupBarrier();
#end
#end
}
