// Merges the splits of a row's keys that forward.wgsl (SPLITS) wrote, in order and with the operations of join.wgsl, so with the bits of one
// workgroup that does all splits. Then it writes o / l and lse = m + log(l).
// parts (rows, heads, splits, D), stats (rows, heads, splits) (m, l), info as in common.wgsl, o (rows, heads, D; O_F16: f16), lse (rows, heads). One
// workgroup per row and head.
struct Params { rows: u32, splits: u32 }
@group(0) @binding(0) var<storage, read> parts_in: array<E>;
@group(0) @binding(1) var<storage, read> stats: array<vec2f>;
@group(0) @binding(2) var<storage, read> info: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> o: array<O>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;
#include "vectors.wgsl"
#include "narrow_out.wgsl"
#include "join.wgsl"
#include "window.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows) { return; }
  let head = group.y;
  let splits = info[row].w / $(SPLIT)u + 1u;
  let at = (row * HEADS + head) * p.splits;
  for (var e = lane; e < DE; e += LANES) {
    var m = -3.0e38;
    var l = 0.0;
    var sum = E();
#if WINDOW
    for (var s = lowest(info[row].w) / $(SPLIT)u; s < splits; s++) {
#else
    for (var s = 0u; s < splits; s++) {
#endif
      let part = stats[at + s];
      let j = joint(m, part.x);
      m = j.m;
      l = join_l(l, part.y, j);
      sum = join_o(sum, parts_in[(at + s) * DE + e], j);
    }
    o[(row * HEADS + head) * DE + e] = out_of(sum / l);
    if (e == 0u) { lse[row * HEADS + head] = m + log(l); }
  }
}
