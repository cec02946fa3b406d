// The operands of matrix units in workgroup memory as f16 (units.wgsl, group_units.wgsl), a K-block of KT: tile_1 of `a`, tile_2 of W. Rows are padded by 8 values, so that the loads of a
// fragment have no bank conflicts. Vector e of a K-block is eight values; neighbours in a row are loaded and stored by neighbouring threads.
// How much of it a workgroup takes matters: an H200 runs two of them side by side where each has 31 KB at most (bench/LOG.md, "On an H200").
var<workgroup> tile_1: array<f16, $(TM*(KT+8))>;
#if FORM_NT
var<workgroup> tile_2: array<f16, $(TN*(KT+8))>; // a row a column of the output
#else
var<workgroup> tile_2: array<f16, $(KT*(TN+8))>; // a row a step of the depth
#endif
var<workgroup> scratch: array<f32, $(SM*SN*FM*FN)>;

// Row and first step of vector e where rows run along the depth.
fn place_of_vector(e: u32) -> vec2u { return vec2u(e / $(KT/8)u, e % $(KT/8)u * 8u); }
// Where the row of vector e begins in `a` (past the last row that one), and from there the vector of the K-block that begins with step t0, clamped to the row. Behind the depth `a` has zeros.
fn a_from(i0: u32, e: u32) -> u32 { return min(i0 + place_of_vector(e).x, p.rows - 1u) * p.a_stride / 8u; }
fn a_place(t0: u32, e: u32) -> u32 { return min((t0 + place_of_vector(e).y) / 8u, p.a_stride / 8u - 1u); }
// Likewise in W, where anything may stand behind the depth.
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
