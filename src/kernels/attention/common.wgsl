// Shared by the attention kernels.
// info[row] = (prefix_start, prefix_len, own_start, position): the token of a row sees logical keys 0 .. position; logical key j lies in
// row prefix_start + j of K and V while j < prefix_len, else in row own_start + j - prefix_len. So rollouts of one prompt share its
// rows in a packed training batch, and no mask is ever made.
// PAGES, over a paged cache: info[row] = (table, prompt, 0, position); logical key j lies in row pages[table + j / PAGES] * PAGES + j % PAGES.
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
// Which place among the rows (of QR or KR) a workgroup has. SPREAD: a CPU driver's threads, of which each takes one part of the workgroups, in their order: `turn` goes slowest, and as later rows see more
// keys, and rows of one kind lie together, each thread has every SPREAD-th place.
fn place_of(along: u32, turn: u32, head: u32) -> u32 {
#if SPREAD
  return along * $(SPREAD)u + (turn + head) % $(SPREAD)u;
#else
  return along + turn * 65535u;
#endif
}
