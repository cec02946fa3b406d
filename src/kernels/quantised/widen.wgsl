// Widens a weight in GGUF blocks (blocks.wgsl) to bf16: rows of the weight from first_row on become rows of a storage slice from w_row on, as in
// weight.wgsl, or of the buffer that is copied into its texture (panels of W_PANEL rows; 1: row after row). The two-byte scales begin at word
// `scales`.
// Eight values per invocation. On CPU drivers (PANELS), which divide lane by lane and combine the stores of neighbouring lanes, a workgroup has the
// rows of a panel and walks along them, 32 values per iteration, with at least eight lanes.
struct Params { rows: u32, k: u32, first_row: u32, w_row: u32, w_texels: u32, scales: u32 }
@group(0) @binding(0) var<storage, read> blocks: array<u32>;
@group(0) @binding(1) var<storage, read_write> w_data: array<vec4u>;
#include "blocks.wgsl"
#include "bf16.wgsl"
#if !PANELS
#include "flat.wgsl"
#endif

fn word_of(which: u32, at: u32) -> u32 { return blocks[at]; }
fn bits_of(lo: vec4f, hi: vec4f) -> vec4u {
  return pack_weight(rounded(lo), rounded(hi));
}
fn values(place: u32, j: u32, s: Stretch, i: u32) -> vec4f { return four(own_words(0u, place, j, i), j, s, i); }

#if PANELS
@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = (group.x + group.y * 65535u) * $(W_PANEL)u + lane % $(W_PANEL)u;
  if (row >= p.rows) { return; }
  let stretches = p.k / 32u;
  let first = (p.first_row + row) * (stretches / $(VALUES / 32)u);
  let at = p.w_row + row;
  let to = at / $(W_PANEL)u * p.w_texels * $(W_PANEL)u + at % $(W_PANEL)u;
  for (var n = lane / $(W_PANEL)u; n < stretches; n += $(LANES / W_PANEL)u) {
    let place = first + n / $(VALUES / 32)u;
    let j = n % $(VALUES / 32)u;
    let s = stretch_of(common_words(0u, place, p.scales), j);
#for G in 0..4
    w_data[to + (4u * n + $(G)u) * $(W_PANEL)u] = bits_of(values(place, j, s, $(2 * G)u), values(place, j, s, $(2 * G + 1)u));
#end
  }
}
#else
fn one(e: u32) {
  let groups = p.k / 8u;
  if (e >= p.rows * groups) { return; }
  let row = e / groups;
  let c = e % groups;
  let place = (p.first_row + row) * (p.k / $(VALUES)u) + c / $(VALUES / 8)u;
  let j = c / 4u % $(VALUES / 32)u;
  let i = 2u * (c & 3u);
  let s = stretch_of(common_words(0u, place, p.scales), j);
  w_data[(p.w_row + row) * p.w_texels + c] = bits_of(values(place, j, s, i), values(place, j, s, i + 1u));
}
#endif
