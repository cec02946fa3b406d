// Shared by the attention kernels.
// info[row] = (prefix_start, prefix_len, own_start, position): the token of a row sees logical keys 0 .. position. Logical key j lies in row
// prefix_start + j of K and V while j < prefix_len, else in row own_start + j - prefix_len. So rollouts of one prompt share its rows in a packed
// training batch, and no mask is ever stored.
// PAGES, over a paged cache: info[row] = (table, prompt, shared, position); logical key j lies in row pages[table + j / PAGES] * PAGES + j % PAGES.
// The first `shared` keys, a multiple of LANES, were already summed together with other rows (RESUME in forward.wgsl); 0 for a prompt's row.
// A head has DE elements, and a lane C = ceil(DE / LANES) of them.
#include "vectors.wgsl"
#include "window.wgsl"
// Whether row `row` exists and this kernel computes it. Over a paged cache, PART 1 computes the rows of decode (prompt 0), PART 2 those of prompts
// (prompt 1), whose neighbours see the same keys, and PART 0 all.
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
// The row of K and V that has key j0 + i, key i of the tile that begins with key j0. Past the end: the row of the last of `keys`. TILED: a tile lies
// in one page, from tile_row on.
fn row_in_tile(at: vec4u, tile_row: u32, j0: u32, i: u32, keys: u32) -> u32 {
#if TILED
  return tile_row + min(i, keys - 1u - j0);
#else
  return key_row(at, min(j0 + i, keys - 1u));
#endif
}
// The (block of `each` rows, head of `heads`) that a workgroup takes. SPREAD: the number of a CPU driver's threads, each of which gets one contiguous
// part of a dispatch. Later rows see more keys, so (block, head) pairs are dealt out round-robin for an even load: group.z, the slowest dimension, is
// the thread. A thread does all its blocks of a head before the next head, or (HEADS_FIRST) all its heads of a block before the next block.
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
