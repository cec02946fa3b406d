// Backward pass of attention to q on matrix units (units_tiles.wgsl): dq[t] = scale sum_j dS[t,j] k[j], dS = P (dO v[j] - delta), P = exp(scale q
// k[j] - lse), over the keys j that row t sees.
// A workgroup has RT rows of one head, last tiles first, and goes through the keys of each of their segments (tile_segments.wgsl), KT per iteration.
// left_1 and left_2 are q and dO, which is multiplied by gradient_scale; right_1 and right_2 are k and v. Order of the sum: a row's keys in fragments
// of FK from key 0 on, or with a window from a multiple of KT on; so no row's bits depend on its place in the batch.
struct Params { rows: u32, scale: f32, gradient_scale: f32 }
#include "units_tiles.wgsl"
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> out_0: array<vec4f>;
#include "common.wgsl"
#include "tile_segments.wgsl"
fn right_place(at: vec4u, j: u32, head: u32) -> u32 { return (key_row(at, j) * KV_HEADS + head) * $(D/8)u; }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let tiles = (p.rows + $(RT-1)u) / $(RT)u;
  let tile = group.x + group.z * 65535u;
  if (tile >= tiles) { return; }
  let row0 = (tiles - 1u - tile) * $(RT)u;
  let left_head = group.y;
  let head = left_head / GROUP;
#include "units_lanes.wgsl"
  // Of the lane's rows: their statistics, and how many keys they see, 0 if there is no row.
#for i in 0..RT/SM/FM
#for q in 0..FM*FN/4/LANES
  let in_tile_$(i)_$(q) = si + $(i*FM)u + down_$(q);
  let seen_$(i)_$(q) = select(0u, info[min(row0 + in_tile_$(i)_$(q), p.rows - 1u)].w + 1u, row0 + in_tile_$(i)_$(q) < p.rows);
  let soft_$(i)_$(q) = soft[min(row0 + in_tile_$(i)_$(q), p.rows - 1u) * HEADS + left_head] * vec2f(1.0, p.gradient_scale);
#end
#end
  for (var rest = segments(row0, id); any(rest != vec2u()); rest = behind(rest)) {
    let begin = first_of(rest);
    if (row0 + begin >= p.rows) { continue; }
    let behind_last = first_of(behind(rest));
    let at = info[row0 + begin];
    let end = info[row0 + behind_last - 1u].w + 1u;
#if WINDOW
    let first_key = lowest(at.w) / $(KT)u * $(KT)u;
#else
    let first_key = 0u;
#endif
#for i in 0..RT/SM/FM
#for q in 0..FM*FN/4/LANES
    let mine_$(i)_$(q) = select(0u, seen_$(i)_$(q), in_tile_$(i)_$(q) >= begin && in_tile_$(i)_$(q) < behind_last);
#end
#end
    {
      let next = first_key;
#include "units_ask.wgsl"
    }
    for (var j0 = first_key; j0 < end; j0 += $(KT)u) {
#include "units_scores.wgsl"
#for i in 0..RT/SM/FM
#for j in 0..KT/SN/FN
#for q in 0..FM*FN/4/LANES
      {
        let place = own + $(i*FM*KT/SN+j*FM*FN)u + (lane + $(q*LANES)u) * 4u;
        let key = vec4u(j0 + sj + $(j*FN)u + across) + vec4u(0u, 1u, 2u, 3u);
        let weight = exp(four(place) * p.scale - soft_$(i)_$(q).x);
#if WINDOW
        let sees = (key < vec4u(mine_$(i)_$(q))) & (key >= vec4u(lowest(max(mine_$(i)_$(q), 1u) - 1u)));
#else
        let sees = key < vec4u(mine_$(i)_$(q));
#endif
        weigh(in_tile_$(i)_$(q) * $(KT+8)u + sj + $(j*FN)u + across, select(vec4f(), weight * (four(place + $(RT*KT/SM/SN)u) - soft_$(i)_$(q).y), sees));
      }
#end
#end
#end
      {
        let next = j0 + $(KT)u;
#include "units_ask.wgsl"
      }
#include "units_add.wgsl"
    }
  }
  let scale_0 = p.scale / p.gradient_scale;
#include "units_out.wgsl"
}
