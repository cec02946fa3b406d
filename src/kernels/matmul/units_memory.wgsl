// The operands of matrix units in workgroup memory as f16 (units.wgsl, group_units.wgsl), one K-block of KT: tile_1 of `a`, tile_2 of W. Rows are
// padded by 8 values, so that loads of a fragment have no bank conflicts. Vector e of a K-block is eight values; neighbouring threads load and store
// neighbouring vectors of a row.
// The amount of workgroup memory matters: an H200 runs two workgroups side by side if each takes at most 31 KB (bench/LOG.md, "On an H200").
var<workgroup> tile_1: array<f16, $(TM*(KT+8))>;
#if FORM_NT
var<workgroup> tile_2: array<f16, $(TN*(KT+8))>; // one row per column of the output
#else
var<workgroup> tile_2: array<f16, $(KT*(TN+8))>; // one row per step of the depth
#endif
var<workgroup> scratch: array<f32, $(SM*SN*FM*FN)>;

// Row and first step of vector e, for an operand whose rows run along the depth.
fn place_of_vector(e: u32) -> vec2u { return vec2u(e / $(KT/8)u, e % $(KT/8)u * 8u); }
// Where the row of vector e begins in `a` (past the end: the last row), and the vector that it has of the K-block beginning with step t0, clamped to
// the row. After the depth, `a` has zeros.
fn a_from(i0: u32, e: u32) -> u32 { return min(i0 + place_of_vector(e).x, p.rows - 1u) * p.a_stride / 8u; }
fn a_place(t0: u32, e: u32) -> u32 { return min((t0 + place_of_vector(e).y) / 8u, p.a_stride / 8u - 1u); }
// The same for W, which may hold anything after the depth.
fn b_from(j0: u32, e: u32) -> u32 {
#if FORM_NT
  return b_row(j0 + place_of_vector(e).x);
#else
  return b_column(j0 + e % $(TN/8)u * 8u);
#endif
}
fn b_place(t0: u32, e: u32) -> u32 {
#if FORM_NT
  return min(t0 + place_of_vector(e).y, b_depth() - 8u) / 8u;
#else
  return b_step(min(t0 + e / $(TN/8)u, b_depth() - 1u));
#endif
}
// Where vector e lies in workgroup memory.
fn at_1(e: u32) -> u32 {
  let place = place_of_vector(e);
  return place.x * $(KT+8)u + place.y;
}
fn at_2(e: u32) -> u32 {
#if FORM_NT
  return at_1(e);
#else
  return e / $(TN/8)u * $(TN+8)u + e % $(TN/8)u * 8u;
#endif
}
#include "half_turns.wgsl"
