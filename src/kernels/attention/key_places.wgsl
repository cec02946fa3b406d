// For the backward pass to k and v in layers with a window: places[r] = (end, position) of key row r. Only rows r .. end - 1 may see it. `end` is
// key_end[r], cut to r + WINDOW if every row from r to there is one position further than the row before it: that is, if r is an own row of the last
// sequence that sees it, or a row of a shared prompt whose window ends within the prompt.
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
