// Shared by the attention kernels.
// info[row] = (prefix_start, prefix_len, own_start, position): the token of a row sees logical keys 0 .. position; logical key j lies in
// row prefix_start + j of K and V while j < prefix_len, else in row own_start + j - prefix_len. So rollouts of one prompt share its
// rows in a packed training batch, and no mask is ever made.
// PAGES, over a paged cache: info[row] = (table, prompt, shared, position); logical key j lies in row pages[table + j / PAGES] * PAGES + j % PAGES.
// `shared` keys, a multiple of LANES, have been gone through with other rows (forward.wgsl, RESUME), 0 for a prompt's row.
// DE elements a head, C = ceil(DE / LANES) of them a lane.
#include "vectors.wgsl"
#include "window.wgsl"
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
// The row of key i of the tile that begins with key j0, or of the last of `keys` behind these. TILED: a tile lies in one page, and tile_row is where its keys begin.
fn row_in_tile(at: vec4u, tile_row: u32, j0: u32, i: u32, keys: u32) -> u32 {
#if TILED
  return tile_row + min(i, keys - 1u - j0);
#else
  return key_row(at, min(j0 + i, keys - 1u));
#endif
}
// A workgroup's place among the rows, `each` to a place, and its head of `heads`. SPREAD: a CPU driver's threads, of which each takes one part of the workgroups, in their order. Later rows see more keys, and
// rows of one kind lie together, so all pairs of rows and heads are dealt out in turn: group.z, which goes slowest, is a thread. It has a head's rows one after the other, or a row's heads (HEADS_FIRST).
fn place_of(group: vec3u, each: u32, heads: u32) -> vec2u {
#if SPREAD
  let pair = group.x * $(SPREAD)u + group.z;
  let places = (p.rows + each - 1u) / each;
  if (pair >= places * heads) { return vec2u(places, 0u); }
#if HEADS_FIRST
  return vec2u(pair / heads, pair % heads);
#else
  return vec2u(pair % places, pair / places);
#endif
#else
  return vec2u(group.x + group.z * 65535u, group.y);
#endif
}
