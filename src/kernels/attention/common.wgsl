// Shared by the attention kernels.
// info[row] = (prefix_start, prefix_len, own_start, position): the token of a row sees logical keys 0 .. position; logical key j lies in
// row prefix_start + j of K and V while j < prefix_len, else in row own_start + j - prefix_len. So rollouts of one prompt share its
// rows in a packed training batch, and no mask is ever made.
// PAGES, over a paged cache: info[row] = (table, prompt, 0, position); logical key j lies in row pages[table + j / PAGES] * PAGES + j % PAGES.
// Values are read as E: VEC4 packs four (head width a multiple of 4), else one. DE elements a head, C = ceil(DE / LANES) of them a lane.
#if VEC4
alias E = vec4f;
fn dot_add(a: E, b: E, s: f32) -> f32 { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, s)))); }
#else
alias E = f32;
fn dot_add(a: E, b: E, s: f32) -> f32 { return fma(a, b, s); }
#endif
#include "lanes.wgsl"

#if !SUBGROUP
var<workgroup> e_scratch: array<E, LANES>;
var<workgroup> f_scratch: array<f32, LANES>;
#endif
// The value that lane `from` holds, for a `from` that all lanes agree on.
fn e_from(lane: u32, value: E, source: u32) -> E {
#if SUBGROUP
  return subgroupShuffle(value, source);
#else
  workgroupBarrier();
  e_scratch[lane] = value;
  workgroupBarrier();
  return e_scratch[source];
#endif
}
fn f_from(lane: u32, value: f32, source: u32) -> f32 {
#if SUBGROUP
  return subgroupShuffle(value, source);
#else
  workgroupBarrier();
  f_scratch[lane] = value;
  workgroupBarrier();
  return f_scratch[source];
#endif
}
// Bounds of loops: LANES, DE and C. ROLLED: as the driver cannot know them it cannot unroll, for on CPU drivers each place in the code that
// loads or stores costs 2 KB of machine code and a tenth of a second of compilation, and a turn of a loop next to nothing.
#if ROLLED
fn turns() -> u32 { return p.lanes; }
fn elements() -> u32 { return p.elements; }
fn parts() -> u32 { return (p.elements + LANES - 1u) / LANES; }
#else
fn turns() -> u32 { return LANES; }
fn elements() -> u32 { return DE; }
fn parts() -> u32 { return $(C)u; }
#endif
// Whether row `row` is there, and this kernel's: of a paged cache PART 1 takes the rows that are alone (prompt 0), PART 2 those of prompts (prompt 1), which have
// neighbours with the same keys, PART 0 all.
fn takes(row: u32) -> bool {
#if PART
  return row < p.rows && info[min(row, p.rows - 1u)].y + 1u == PART;
#else
  return row < p.rows;
#endif
}
#if PAGES
fn key_row(i: vec4u, j: u32) -> u32 { return pages[i.x + j / $(PAGES)u] * $(PAGES)u + j % $(PAGES)u; }
#else
fn key_row(i: vec4u, j: u32) -> u32 { return select(i.z + j - i.y, i.x + j, j < i.y); }
#endif
