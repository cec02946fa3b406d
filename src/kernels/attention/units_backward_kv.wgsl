// Backward pass of attention to k and v on matrix units (units_tiles.wgsl): dk[j] = scale sum_t dS[t,j] q[t], dv[j] = sum_t P[t,j] dO[t], over all
// rows t that see key row j and all heads of its group.
// A workgroup has RT key rows of one kv head and goes through the queries from its first row on, KT at a time, heads in order. left_1 and left_2 are
// k and v, right_1 and right_2 are q and dO, which is multiplied by gradient_scale. Order of the sum: heads, then queries in fragments of FK from the
// tile's first row on.
struct Params { rows: u32, scale: f32, gradient_scale: f32 }
#include "units_tiles.wgsl"
#include "key_ends.wgsl"
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> out_0: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> out_1: array<vec4f>;
var<workgroup> ends: array<u32, $(RT)>;
var<workgroup> farthest: u32;
fn right_place(at: vec4u, t: u32, head: u32) -> u32 { return (t * HEADS + head) * $(D/8)u; }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let row0 = (group.x + group.z * 65535u) * $(RT)u;
  if (row0 >= p.rows) { return; }
  let left_head = group.y;
  let at = vec4u();
#include "units_lanes.wgsl"
#include "tile_ends.wgsl"
#for i in 0..RT/SM/FM
#for q in 0..FM*FN/4/LANES
  let in_tile_$(i)_$(q) = si + $(i*FM)u + down_$(q);
  let row_$(i)_$(q) = row0 + in_tile_$(i)_$(q);
  let to_$(i)_$(q) = ends[in_tile_$(i)_$(q)];
#if WINDOW
  let position_$(i)_$(q) = places[min(row_$(i)_$(q), p.rows - 1u)].y;
#endif
#end
#end
  for (var g = 0u; g < GROUP; g++) {
    let head = left_head * GROUP + g;
    {
      let next = row0;
#include "units_ask.wgsl"
    }
    for (var j0 = row0; j0 < end; j0 += $(KT)u) {
#for j in 0..KT/SN/FN
#for c in 0..4
      let soft_$(j)_$(c) = soft[min(j0 + sj + $(j*FN+c)u + across, end - 1u) * HEADS + head];
#end
      let lse_$(j) = vec4f(soft_$(j)_0.x, soft_$(j)_1.x, soft_$(j)_2.x, soft_$(j)_3.x);
      let delta_$(j) = vec4f(soft_$(j)_0.y, soft_$(j)_1.y, soft_$(j)_2.y, soft_$(j)_3.y) * p.gradient_scale;
#end
#include "units_scores.wgsl"
#for i in 0..RT/SM/FM
#for j in 0..KT/SN/FN
#for q in 0..FM*FN/4/LANES
      {
        let place = own + $(i*FM*KT/SN+j*FM*FN)u + (lane + $(q*LANES)u) * 4u;
        let row = vec4u(j0 + sj + $(j*FN)u + across) + vec4u(0u, 1u, 2u, 3u);
        var sees = (row >= vec4u(row_$(i)_$(q))) & (row < vec4u(to_$(i)_$(q)));
#if WINDOW
#for c in 0..4
        sees[$(c)] = sees[$(c)] && places[min(row[$(c)], end - 1u)].y - position_$(i)_$(q) < WINDOW;
#end
#endif
        let weight = select(vec4f(), exp(four(place) * p.scale - lse_$(j)), sees);
        let to = in_tile_$(i)_$(q) * $(KT+8)u + sj + $(j*FN)u + across;
        weigh(to, select(vec4f(), weight * (four(place + $(RT*KT/SM/SN)u) - delta_$(j)), sees));
        weigh(to + $(RT*(KT+8))u, weight);
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
  let scale_1 = 1.0 / p.gradient_scale;
#include "units_out.wgsl"
}
