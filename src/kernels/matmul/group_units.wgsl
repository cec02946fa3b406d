// Projections of one input in one dispatch on matrix units. It computes what group_tile.wgsl computes (same names and places; without DOWN), in the
// way of units.wgsl, with that order of the sum and so those bits. k is a multiple of 8; x (`a`, units_stage.wgsl) and W (Weight.f16) are f16, eight
// values per vec4u.
// With GATED, the first half of a subgroup's TN / SN columns belongs to the first member, and the second half has the same columns of the second.
// With ROPE, the second half lies HALF further in the same heads than the first.
struct Params { rows: u32, k: u32, rank: u32, n_0: u32, n_1: u32, n_2: u32, b_0: u32, b_1: u32, b_2: u32, c_0: u32, c_1: u32, c_2: u32, xa_stride: u32, per_row: u32, a_stride: u32 }
@group(0) @binding(0) var<storage, read> a: array<vec4u>;
@group(0) @binding(1) var<storage, read> b: array<vec4u>;
#include "group_members.wgsl"
#include "units_memory.wgsl"

// This workgroup's member, the first column that it has there, and that member's width.
var<private> own: vec3u;
fn width_of(s: u32) -> u32 { return pick(s, p.n_0, p.n_1, p.n_2); }
#if LORA
// Four values from value `at` on, which with LOW4 is a multiple of 4.
#if LOW4
fn bank_four(at: u32) -> vec4f { return bank[at / 4u]; }
fn xa_four(at: u32) -> vec4f { return xa[at / 4u]; }
#else
fn bank_four(at: u32) -> vec4f { return vec4f(bank[at], bank[at + 1u], bank[at + 2u], bank[at + 3u]); }
fn xa_four(at: u32) -> vec4f { return vec4f(xa[at], xa[at + 1u], xa[at + 2u], xa[at + 3u]); }
#endif
#endif
// As in units.wgsl.
fn b_depth() -> u32 { return p.k; }
fn b_row(j: u32) -> u32 {
  let column = column_of(own.y, j);
  return (pick(own.x + column.x, 0u, p.n_0, p.n_0 + p.n_1) + min(column.y, own.z - 1u)) * p.k / 8u;
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
  {
    let n = column_of(n0, sj + $(j*FN)u + lane % $(FN)u).y;
#for e in 0..FM*FN/LANES
    let m_$(e) = i0 + si + $(i*FM)u + lane / $(FN)u + $(e*LANES/FN)u;
    var a_$(e) = scratch[subgroup * $(FM*FN)u + lane + $(e*LANES)u];
#end
    workgroupBarrier();
#if PAIRED
    subgroupMatrixStore<row_major>(&scratch, subgroup * $(FM*FN)u, acc_$(i)_$(j+TN/SN/FN/2), $(FN)u);
    workgroupBarrier();
#for e in 0..FM*FN/LANES
    var b_$(e) = scratch[subgroup * $(FM*FN)u + lane + $(e*LANES)u];
#end
#endif
    // Past the member's end, a lane reads the last column and stores nothing.
    let known = min(n, width - 1u);
#if LORA
    let b_at = pick(s, p.b_0, p.b_1, p.b_2) + known * p.rank;
#if GATED
    let pair_b_at = p.b_1 + known * p.rank;
#else
#if ROPE
    let pair_b_at = pick(s, p.b_0, p.b_1, p.b_2) + min(n + HALF, width - 1u) * p.rank;
#endif
#endif
    for (var r = 0u; r < p.rank; r += 4u) {
      let high = bank_four(b_at + r);
#if PAIRED
      let pair_high = bank_four(pair_b_at + r);
#endif
#for e in 0..FM*FN/LANES
      let row_$(e) = min(m_$(e), p.rows - 1u) * p.rank + r;
      let low_$(e) = xa_four(s * p.xa_stride + row_$(e));
#if GATED
      let pair_low_$(e) = xa_four(p.xa_stride + row_$(e));
#else
#if ROPE
      let pair_low_$(e) = low_$(e);
#endif
#endif
#for c in 0..4
      a_$(e) = fma(low_$(e)[$(c)], high[$(c)], a_$(e));
#if PAIRED
      b_$(e) = fma(pair_low_$(e)[$(c)], pair_high[$(c)], b_$(e));
#endif
#end
#end
    }
#endif
#if BIAS
    let c_at = pick(s, p.c_0, p.c_1, p.c_2) + known;
#if GATED
    let pair_bias = bias[p.c_1 + known];
#else
#if ROPE
    let pair_bias = bias[pick(s, p.c_0, p.c_1, p.c_2) + min(n + HALF, width - 1u)];
#endif
#endif
#for e in 0..FM*FN/LANES
    a_$(e) += bias[c_at];
#if PAIRED
    b_$(e) += pair_bias;
#endif
#end
#endif
#for e in 0..FM*FN/LANES
    if (m_$(e) < p.rows && n < width) {
#if ROPE
      finish_pair(s, m_$(e), n, width, a_$(e), b_$(e));
#else
      let at = m_$(e) * width + n;
#if GATED
      let y = a_$(e) / (1.0 + exp(-steep(a_$(e)))) * b_$(e);
#if Y_F16
      y_0[at] = narrow_one(y);
#else
      y_0[at] = y;
#endif
#else
#for o in 0..OUTPUTS
      if (s == $(o)u) { y_$(o)[at] = a_$(e); }
#end
#endif
#endif
    }
#end
  }
  workgroupBarrier();
#end
#end
}
