// Matmul on matrix units, f16 x f16 -> f32, for GPUs that have them (`chromium-experimental-subgroup-matrix`), forward and backward to the input:
//   FORM_NT: y[m,n] = sum_k x[m,k] W[n,k]     else (NN): dx[m,k] = sum_n dy[m,n] W[n,k]
// times alpha. LORA goes on summing over the rank in float32 (NT: xa, B; NN: dxa, A), BIAS and RESIDUAL are added after alpha, ACCUMULATE adds to what is there.
// `a` is x or dy, float32, times a_scale (a power of two, taken out again by out_scale) and rounded to f16, clamped to its range; `b` is W in bf16,
// eight values a vec4u, rounded to f16. Strides and columns of a are multiples of 4, of W multiples of 8.
// A workgroup of SM x SN subgroups owns TM x TN outputs; both operands pass through workgroup memory as f16, KT deep; a subgroup multiplies fragments of
// FM x FN x FK. TN_PART: a workgroup takes that many steps of the depth (a multiple of KT), and what it gets is a matrix of its own: out is (parts, rows, columns).
// Order of the sum: fragments of FK along the depth, one after another, for every tile and number of rows; within one, the unit's own.
struct Params { rows: u32, columns: u32, depth: u32, rank: u32, a_stride: u32, a_column: u32, b_stride: u32, b_row: u32, out_stride: u32, out_column: u32, first_row: u32, alpha: f32, a_scale: f32, out_scale: f32 }
@group(0) @binding(0) var<storage, read> a: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<vec4u>;
#if LORA
@group(0) @binding(3) var<storage, read> lora_x: array<f32>;
@group(0) @binding(4) var<storage, read> lora_w: array<f32>;
#endif
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#if RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif
// Rows 8 values longer than they need be, so that fragments do not meet in one memory bank.
var<workgroup> a_tile: array<f16, $(TM*(KT+8))>;
#if FORM_NT
var<workgroup> b_tile: array<f16, $(TN*(KT+8))>; // a row a column of the output
#else
var<workgroup> b_tile: array<f16, $(KT*(TN+8))>; // a row a step of the depth
#endif
var<workgroup> scratch: array<f32, $(SM*SN*FM*FN)>;

#include "narrow.wgsl"

fn finish(out_row: u32, i: u32, j: u32, sum: f32) {
  if (i >= p.rows || j >= p.columns) { return; }
  var value = sum * p.out_scale;
#if LORA
  for (var r = 0u; r < p.rank; r++) {
#if FORM_NT
    value = fma(lora_x[i * p.rank + r], lora_w[(p.first_row + j) * p.rank + r], value);
#else
    value = fma(lora_x[i * p.rank + r], lora_w[r * p.columns + j], value);
#endif
  }
#endif
  let at = (out_row + i) * p.out_stride + p.out_column + j;
  value *= p.alpha;
#if BIAS
  value += bias[p.first_row + j];
#endif
#if RESIDUAL
  value += residual[at];
#endif
#if ACCUMULATE
  out[at] += value;
#else
  out[at] = value;
#endif
}

@compute @workgroup_size($(SM*SN*LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
  let j0 = group.x * $(TN)u;
  let subgroup = id / $(LANES)u;
  let lane = id % $(LANES)u;
  let si = (subgroup / $(SN)u) * $(TM/SM)u;
  let sj = (subgroup % $(SN)u) * $(TN/SN)u;
#for i in 0..TM/SM/FM
#for j in 0..TN/SN/FN
  var acc_$(i)_$(j): subgroup_matrix_result<f32, $(FN), $(FM)>;
#end
#end
#if TN_PART
  let begin = group.z * TN_PART;
  let end = min(begin + TN_PART, p.depth);
  let out_row = group.z * p.rows;
#else
  let begin = 0u;
  let end = p.depth;
  let out_row = 0u;
#endif
  for (var t0 = begin; t0 < end; t0 += $(KT)u) {
    for (var s = id; s < $(TM*KT/4)u; s += $(SM*SN*LANES)u) {
      let row = s / $(KT/4)u;
      let t = (s % $(KT/4)u) * 4u;
      var v = vec4<f16>();
      if (i0 + row < p.rows && t0 + t < p.depth) {
        v = narrow(a[((i0 + row) * p.a_stride + p.a_column + t0 + t) / 4u] * p.a_scale);
      }
#for q in 0..4
      a_tile[row * $(KT+8)u + t + $(q)u] = v[$(q)];
#end
    }
#if FORM_NT
    for (var s = id; s < $(TN*KT/8)u; s += $(SM*SN*LANES)u) {
      let row = s / $(KT/8)u;
      let column = (s % $(KT/8)u) * 8u;
      let inside = j0 + row < p.columns && t0 + column < p.depth;
      let at = row * $(KT+8)u + column;
      let source = (p.b_row + j0 + row) * p.b_stride + t0 + column;
#else
    for (var s = id; s < $(TN*KT/8)u; s += $(SM*SN*LANES)u) {
      let row = s / $(TN/8)u;
      let column = (s % $(TN/8)u) * 8u;
      let inside = t0 + row < p.depth && j0 + column < p.columns;
      let at = row * $(TN+8)u + column;
      let source = (p.b_row + t0 + row) * p.b_stride + j0 + column;
#endif
      var even = vec4<f16>();
      var odd = vec4<f16>();
      if (inside) {
        let u = b[source / 8u];
        even = narrow(low(u));
        odd = narrow(high(u));
      }
#for q in 0..4
      b_tile[at + $(2*q)u] = even[$(q)];
      b_tile[at + $(2*q+1)u] = odd[$(q)];
#end
    }
    workgroupBarrier();
#include "units_step.wgsl"
    workgroupBarrier();
  }
#for i in 0..TM/SM/FM
#for j in 0..TN/SN/FN
  subgroupMatrixStore<row_major>(&scratch, subgroup * $(FM*FN)u, acc_$(i)_$(j), $(FN)u);
  workgroupBarrier();
  for (var e = lane; e < $(FM*FN)u; e += $(LANES)u) {
    finish(out_row, i0 + si + $(i*FM)u + e / $(FN)u, j0 + sj + $(j*FN)u + e % $(FN)u, scratch[subgroup * $(FM*FN)u + e]);
  }
  workgroupBarrier();
#end
#end
}
