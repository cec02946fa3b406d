// For the backward pass to k and v of layers with a window (backward_kv.wgsl): places[r] = (end, position) of key row r, where rows r .. end - 1 are all that may see it.
// They are those up to key_end[r], but where each row from r on stands a token further: no row past the window is visited then. So it is in the own part of
// the last sequence that sees r, and in a shared prompt where the window ends with the prompt's own rows.
struct Params { rows: u32 }
@group(0) @binding(0) var<storage, read> info: array<vec4u>;
@group(0) @binding(1) var<storage, read> key_end: array<u32>;
@group(0) @binding(2) var<storage, read_write> places: array<vec2u>;
#include "flat.wgsl"

fn one(r: u32) {
  if (r >= p.rows) { return; }
  let end = key_end[r];
  let last = info[max(end, 1u) - 1u];
  let position = info[r].w;
  let one_by_one = r >= last.z || position + WINDOW <= last.y;
  places[r] = vec2u(select(end, min(end, r + WINDOW), one_by_one), position);
}
