// The three products of a linear layer for GPUs, and for shapes that the CPU kernels do not take:
//   FORM_NT: y[m,n] = sum_k x[m,k] W[n,k]     FORM_NN: dx[m,k] = sum_n dy[m,n] W[n,k]     else (TN): dW[n,k] = sum_m dy[m,n] x[m,k]
// all times alpha. LORA goes on summing over the rank (NT: xa, B; NN: dxa, A), BIAS and RESIDUAL are added after alpha, ACCUMULATE adds
// to what is there. `a` is x or dy (float32), `b` is W (bf16 pairs or float32) or, for TN, x. Any sizes.
// Register tile: 16 x 16 threads own TM x TN outputs, TM / 16 x TN / 16 each (TN a multiple of 64); both operands pass through workgroup memory, 16 deep.
// Order of the sum: t = 0 .. depth-1, one accumulator an output, whatever the number of rows.
// TN_PART: a workgroup takes that many steps of the depth, and what it gets is a matrix of its own: out is (parts, rows, columns).
// Slices: a starts at column a_column of rows a_stride apart, b at row b_row of rows b_stride apart, out at row out_row and column out_column;
// NT: column j of the slice is row first_row + j of the whole W, so of B and of bias.
struct Params { rows: u32, columns: u32, depth: u32, rank: u32, a_stride: u32, a_column: u32, b_stride: u32, b_row: u32, out_stride: u32, out_row: u32, out_column: u32, first_row: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
#if W_BF16
@group(0) @binding(2) var<storage, read> b: array<u32>;
#else
@group(0) @binding(2) var<storage, read> b: array<f32>;
#endif
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
var<workgroup> a_tile: array<f32, $(16*TM)>;  // 16 deep x TM
var<workgroup> b_tile: array<f32, $(16*TN)>;

fn b_value(index: u32) -> f32 {
#if W_BF16
  let pair = b[index / 2u];
  return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, (index & 1u) == 1u));
#else
  return b[index];
#endif
}
fn load_a(i: u32, t: u32) -> f32 {
  if (i >= p.rows) { return 0.0; }
#if LORA
  if (t >= p.depth) { return lora_x[i * p.rank + t - p.depth]; }
#endif
#if FORM_TN
  return a[t * p.a_stride + p.a_column + i];
#else
  return a[i * p.a_stride + p.a_column + t];
#endif
}
fn load_b(j: u32, t: u32) -> f32 {
  if (j >= p.columns) { return 0.0; }
#if LORA
#if FORM_NT
  if (t >= p.depth) { return lora_w[(p.first_row + j) * p.rank + t - p.depth]; }
#else
  if (t >= p.depth) { return lora_w[(t - p.depth) * p.columns + j]; }
#endif
#endif
#if FORM_NT
  return b_value((p.b_row + j) * p.b_stride + t);
#else
  return b_value((p.b_row + t) * p.b_stride + j);
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
  let j0 = group.x * $(TN)u;
#if LORA
  let depth = p.depth + p.rank;
#else
  let depth = p.depth;
#endif
#if TN_PART
  let begin = group.z * TN_PART;
  let end = min(begin + TN_PART, depth);
  let out_row = group.z * p.rows;
#else
  let begin = 0u;
  let end = depth;
  let out_row = p.out_row;
#endif
  let ti = (id / 16u) * $(TM/16)u;
  let tj = (id % 16u) * $(TN/16)u;
#for r in 0..TM/16
#for v in 0..TN/64
  var acc$(r)_$(v) = vec4f();
#end
#end
  for (var t0 = begin; t0 < end; t0 += 16u) {
    // Neighbouring threads read neighbouring addresses: along t where rows are contiguous in t, else along i or j.
    for (var s = id; s < $(16*TM)u; s += 256u) {
#if FORM_TN
      let at = s % $(TM)u;
      let ad = s / $(TM)u;
#else
      let at = s / 16u;
      let ad = s % 16u;
#endif
      a_tile[ad * $(TM)u + at] = select(0.0, load_a(i0 + at, min(t0 + ad, end - 1u)), t0 + ad < end);
    }
    for (var s = id; s < $(16*TN)u; s += 256u) {
#if FORM_NT
      let bt = s / 16u;
      let bd = s % 16u;
#else
      let bt = s % $(TN)u;
      let bd = s / $(TN)u;
#endif
      b_tile[bd * $(TN)u + bt] = select(0.0, load_b(j0 + bt, min(t0 + bd, end - 1u)), t0 + bd < end);
    }
    workgroupBarrier();
#include "tile_step.wgsl"
    workgroupBarrier();
  }
#for r in 0..TM/16
#for q in 0..TN/16
  if (i0 + ti + $(r)u < p.rows && j0 + tj + $(q)u < p.columns) {
    let at = (out_row + i0 + ti + $(r)u) * p.out_stride + p.out_column + j0 + tj + $(q)u;
    var value = acc$(r)_$(q/4)[$(q%4)] * p.alpha;
#if BIAS
    value += bias[p.first_row + j0 + tj + $(q)u];
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
#end
#end
}
