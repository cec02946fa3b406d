// Takes the token of the best slice of draw_part.wgsl, or the smallest of equally good ones: drawn[r], LANES invocations per row. Rows that draw
// nothing get what draw.wgsl gives them.
struct Params { rows: u32, slices: u32 }
@group(0) @binding(0) var<storage, read> best: array<vec2u>;
@group(0) @binding(1) var<storage, read> settings: array<vec4f>;
@group(0) @binding(2) var<storage, read> seeds: array<vec2u>;
@group(0) @binding(3) var<storage, read_write> drawn: array<u32>;
#include "lanes.wgsl"
#include "best.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows) { return; }
  let use_of_row = settings[2u * row + 1u].w;
  if (use_of_row != 1.0) {
    if (lane == 0u) { drawn[row] = select(0u, seeds[row].x, use_of_row == 2.0); }
    return;
  }
  var value = -3.4e38;
  var token = 0u;
  for (var s = lane; s < p.slices; s += LANES) {
    let one = best[row * p.slices + s];
    let of_slice = bitcast<f32>(one.x);
    // Slices come in order, so the first of equal ones has the smallest token.
    if (of_slice > value) { value = of_slice; token = one.y; }
  }
  let most = lanes_max(lane, value);
  let of_most = smallest_token(lane, token, value == most);
  if (lane == 0u) { drawn[row] = of_most; }
}
