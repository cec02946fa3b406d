// Projections of one input in one dispatch on matrix units: what group_tile.wgsl computes (its names and places; not DOWN), as units.wgsl does, with that order of
// the sum and so those bits. k is a multiple of 8; W in bf16, eight values a vec4u.
// GATED, of the TN / SN columns of a subgroup the first half are of the first member, the second half the same columns of the second; ROPE, the second half are those
// that the first makes pairs with.
struct Params { rows: u32, k: u32, rank: u32, n_0: u32, n_1: u32, n_2: u32, b_0: u32, b_1: u32, b_2: u32, c_0: u32, c_1: u32, c_2: u32, xa_stride: u32, per_row: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
#include "group_members.wgsl"
// Rows 8 values longer than they need be, so that fragments do not meet in one memory bank.
var<workgroup> a_tile: array<f16, $(TM*(KT+8))>;
var<workgroup> b_tile: array<f16, $(TN*(KT+8))>; // a row a column of the output
var<workgroup> scratch: array<f32, $(SM*SN*FM*FN)>;
#include "narrow.wgsl"
#if NORM
@group(0) @binding(10) var<storage, read> gain: array<vec4f>;
fn x_value(index: u32) -> f32 { return x[index / 4u][index % 4u]; }
#include "norm_rows.wgsl"
#endif

fn width_of(s: u32) -> u32 { return pick(s, p.n_0, p.n_1, p.n_2); }
// What comes to a product of member s in row i and column n.
fn whole(s: u32, i: u32, n: u32, sum: f32) -> f32 {
  var value = sum;
#if LORA
  let b_at = pick(s, p.b_0, p.b_1, p.b_2) + n * p.rank;
  for (var r = 0u; r < p.rank; r++) { value = fma(xa[s * p.xa_stride + i * p.rank + r], bank[b_at + r], value); }
#endif
#if BIAS
  value += bias[pick(s, p.c_0, p.c_1, p.c_2) + n];
#endif
  return value;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
#include "group_place.wgsl"
  let subgroup = id / $(LANES)u;
  let lane = id % $(LANES)u;
  let si = (subgroup / $(SN)u) * $(TM/SM)u;
  let sj = (subgroup % $(SN)u) * $(TN/SN)u;
#if NORM
  scale_rows(i0, id);
#endif
#for i in 0..TM/SM/FM
#for j in 0..TN/SN/FN
  var acc_$(i)_$(j): subgroup_matrix_result<f32, $(FN), $(FM)>;
#end
#end
  for (var t0 = 0u; t0 < p.k; t0 += $(KT)u) {
    for (var e = id; e < $(TM*KT/4)u; e += THREADS) {
      let row = e / $(KT/4)u;
      let t = (e % $(KT/4)u) * 4u;
      var v = vec4<f16>();
      if (i0 + row < p.rows && t0 + t < p.k) {
        var value = x[((i0 + row) * p.k + t0 + t) / 4u];
#if NORM
        value = value * row_scale[row] * gain[(t0 + t) / 4u];
#endif
        v = narrow(value);
      }
#for q in 0..4
      a_tile[row * $(KT+8)u + t + $(q)u] = v[$(q)];
#end
    }
    for (var e = id; e < $(TN*KT/8)u; e += THREADS) {
      let t = (e % $(KT/8)u) * 8u;
      let at = e / $(KT/8)u * $(KT+8)u + t;
      let column = column_of(n0, e / $(KT/8)u);
      var even = vec4<f16>();
      var odd = vec4<f16>();
      if (column.y < width && t0 + t < p.k) {
        let u = w[((pick(s + column.x, 0u, p.n_0, p.n_0 + p.n_1) + column.y) * p.k + t0 + t) / 8u];
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
#for j in 0..TN/SN/FN/(1+PAIRED)
  subgroupMatrixStore<row_major>(&scratch, subgroup * $(FM*FN)u, acc_$(i)_$(j), $(FN)u);
  workgroupBarrier();
#for e in 0..(FM*FN+LANES-1)/LANES
  let sum_$(i)_$(j)_$(e) = scratch[subgroup * $(FM*FN)u + min(lane + $(e*LANES)u, $(FM*FN-1)u)];
#end
  workgroupBarrier();
#if PAIRED
  subgroupMatrixStore<row_major>(&scratch, subgroup * $(FM*FN)u, acc_$(i)_$(j+TN/SN/FN/2), $(FN)u);
  workgroupBarrier();
#endif
#for e in 0..(FM*FN+LANES-1)/LANES
  {
    let e = lane + $(e*LANES)u;
    let m = i0 + si + $(i*FM)u + e / $(FN)u;
    let n = column_of(n0, sj + $(j*FN)u + e % $(FN)u).y;
    if (e < $(FM*FN)u && m < p.rows && n < width) {
      let value = whole(s, m, n, sum_$(i)_$(j)_$(e));
#if ROPE
      finish_pair(s, m, n, width, value, whole(s, m, n + HALF, scratch[subgroup * $(FM*FN)u + e]));
#else
      let at = m * width + n;
#if GATED
      y_0[at] = value / (1.0 + exp(-value)) * whole(1u, m, n, scratch[subgroup * $(FM*FN)u + e]);
#else
#for o in 0..OUTPUTS
      if (s == $(o)u) { y_$(o)[at] = value; }
#end
#endif
#endif
    }
  }
#end
  workgroupBarrier();
#end
#end
}
