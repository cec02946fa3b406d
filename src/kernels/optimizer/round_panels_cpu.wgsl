// Like round_weight.wgsl, for CPU drivers, into a buffer with the panels of a texture (weight.wgsl), which is then copied to the texture: a
// subgroup's store to a texture costs three times as much as one to a buffer (bench/LOG.md). Rows of the master from first_row on; that row is the
// first of panel 0.
// A workgroup has the PANEL rows of a panel (8 or 16) and walks along them. If it has twice as many lanes, the upper half takes every other texel.
struct Params { rows: u32, k: u32, first_row: u32 }
@group(0) @binding(0) var<storage, read> master: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> panels: array<vec4u>;

#include "bf16.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let panel = group.x + group.y * 65535u;
  let row = panel * PANEL + lane % PANEL;
  if (row >= p.rows) { return; }
  let source = (p.first_row + row) * (p.k / 4u);
  for (var c = lane / PANEL; c < p.k / 8u; c += $(LANES / PANEL)u) {
    let lo = master[source + 2u * c];
    let hi = master[source + 2u * c + 1u];
#if W_BF16
    panels[(panel * (p.k / 8u) + c) * PANEL + lane % PANEL] = pack_bf16(round_bf16(lo), round_bf16(hi));
#else
    let to = 2u * (panel * (p.k / 8u) + c) * PANEL + lane % PANEL;
    panels[to] = bitcast<vec4u>(lo);
    panels[to + PANEL] = bitcast<vec4u>(hi);
#endif
  }
}
