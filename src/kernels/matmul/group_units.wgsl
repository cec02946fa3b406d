// Projections of one input in one dispatch on matrix units: what group_tile.wgsl computes (its names and places; not DOWN), as units.wgsl does, with that order of
// the sum and so those bits. k is a multiple of 8; x in f16 (units_stage.wgsl) and W in bf16, eight values a vec4u.
// GATED, of the TN / SN columns of a subgroup the first half are of the first member, the second half the same columns of the second; ROPE, the second half are those
// that the first makes pairs with.
struct Params { rows: u32, k: u32, rank: u32, n_0: u32, n_1: u32, n_2: u32, b_0: u32, b_1: u32, b_2: u32, c_0: u32, c_1: u32, c_2: u32, xa_stride: u32, per_row: u32 }
@group(0) @binding(0) var<storage, read> x: array<vec4u>;
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
#include "group_members.wgsl"
#include "units_memory.wgsl"

// Of this workgroup: its member, its first column there, and how many columns that has.
var<private> own: vec3u;
fn width_of(s: u32) -> u32 { return pick(s, p.n_0, p.n_1, p.n_2); }
// What comes to a product of member s in row i and column n.
fn whole(s: u32, i: u32, n: u32, sum: f32) -> f32 {
  var value = sum;
#if LORA
  let b_at = pick(s, p.b_0, p.b_1, p.b_2) + n * p.rank;
#if LOW4
  for (var r = 0u; r < p.rank / 4u; r++) {
    let low = xa[(s * p.xa_stride + i * p.rank) / 4u + r];
    let high = bank[b_at / 4u + r];
#for q in 0..4
    value = fma(low[$(q)], high[$(q)], value);
#end
  }
#else
  for (var r = 0u; r < p.rank; r++) { value = fma(xa[s * p.xa_stride + i * p.rank + r], bank[b_at + r], value); }
#endif
#endif
#if BIAS
  value += bias[pick(s, p.c_0, p.c_1, p.c_2) + n];
#endif
  return value;
}

fn a_values(i: u32, t: u32) -> vec4u {
  if (i >= p.rows || t >= p.k) { return vec4u(); }
  return x[(i * p.k + t) / 8u];
}
fn b_values(j: u32, t: u32) -> vec4u {
  let column = column_of(own.y, j);
  if (column.y >= own.z || t >= p.k) { return vec4u(); }
  return w[((pick(own.x + column.x, 0u, p.n_0, p.n_0 + p.n_1) + column.y) * p.k + t) / 8u];
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let i0 = group.y * $(TM)u;
#include "group_place.wgsl"
  own = vec3u(s, n0, width);
  let j0 = 0u;
  let begin = 0u;
  let end = p.k;
#include "units_turns.wgsl"
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
      y_0[at] = value / (1.0 + exp(-steep(value))) * whole(1u, m, n, scratch[subgroup * $(FM*FN)u + e]);
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
