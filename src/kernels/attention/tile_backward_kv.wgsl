// Backward pass of attention to k and v for GPUs, with the bits of backward_kv.wgsl. A workgroup takes RT key rows of one kv head and goes through
// the queries in tiles of KT rows, heads in order, rows in order. A thread owns four key rows: in the scores the queries kx + KX i, in dk and dv the
// vectors kx + KX c.
struct Params { rows: u32, pieces: u32, depth: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
#include "key_ends.wgsl"
@group(0) @binding(4) var<storage, read> d_out: array<vec4f>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dk: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> dv: array<vec4f>;
#include "common.wgsl"
#include "load_kv.wgsl"
#include "load_q.wgsl"
var<workgroup> room: array<vec4f, $(ROOM)>;
var<workgroup> ends: array<u32, $(RT)>;
var<workgroup> farthest: u32;

// `head` is a query head here: the right operands of the scores are q and dO.
fn left_place(row0: u32, kv_head: u32, x: u32) -> u32 { return (min(row0 + x, p.rows - 1u) * KV_HEADS + kv_head) * DE; }
fn left(place: u32, second: u32) -> vec4f {
  if (second == 1u) { return v[place]; }
  return k[place];
}
fn right_place(at: vec4u, t: u32, head: u32) -> u32 { return (t * HEADS + head) * DE; }
fn right(place: u32, second: u32) -> vec4f {
  if (second == 1u) { return d_out[place]; }
  return q[place];
}
fn added_0(at: vec4u, t: u32, head: u32, e: u32) -> vec4f { return load_d_out(t, head, e); }
fn added_1(at: vec4u, t: u32, head: u32, e: u32) -> vec4f { return load_q(t, head, e); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let row0 = (group.x + group.z * 65535u) * $(RT)u;
  if (row0 >= p.rows) { return; }
  let head0 = group.y;
#include "tile_lanes.wgsl"
  let at = vec4u();
#include "tile_ends.wgsl"
  let keys = end;
  let from_row = vec4u(row0 + 4u * rows4) + vec4u(0u, 1u, 2u, 3u);
  let to_row = vec4u(ends[4u * rows4], ends[4u * rows4 + 1u], ends[4u * rows4 + 2u], ends[4u * rows4 + 3u]);
#if WINDOW
  var position = vec4u();
#for r in 0..4
  position[$(r)] = places[min(row0 + 4u * rows4 + $(r)u, p.rows - 1u)].y;
#end
#endif
#for r in 0..4
#for c in 0..VC
  var sum_0_$(r)_$(c) = vec4f();
  var sum_1_$(r)_$(c) = vec4f();
#end
#end
  for (var g = 0u; g < GROUP; g++) {
    let head = head0 * GROUP + g;
    for (var j0 = row0; j0 < keys; j0 += $(KT)u) {
#for i in 0..KT/KX
      let soft_$(i) = soft[min(j0 + kx + $(KX*i)u, keys - 1u) * HEADS + head];
#end
#include "tile_scores.wgsl"
#for i in 0..KT/KX
      let t_$(i) = j0 + kx + $(KX*i)u;
#if WINDOW
      let sees_$(i) = (vec4u(t_$(i)) >= from_row) & (vec4u(t_$(i)) < to_row) & (vec4u(places[min(t_$(i), keys - 1u)].y) - position < vec4u(WINDOW));
#else
      let sees_$(i) = (vec4u(t_$(i)) >= from_row) & (vec4u(t_$(i)) < to_row);
#endif
      let w_$(i) = select(vec4f(), exp(first_$(i) * p.scale - soft_$(i).x), sees_$(i));
      room[(kx + $(KX*i)u) * $(RT/4+1)u + rows4] = w_$(i);
      let next_$(i) = select(vec4f(), w_$(i) * (score_$(i) - soft_$(i).y) * p.scale, sees_$(i));
#end
#include "tile_add.wgsl"
    }
  }
#for r in 0..4
#for c in 0..VC
  if (row0 + 4u * rows4 + $(r)u < p.rows && kx + $(KX*c)u < DE) {
    let place = ((row0 + 4u * rows4 + $(r)u) * KV_HEADS + head0) * DE + kx + $(KX*c)u;
    dv[place] = sum_0_$(r)_$(c);
    dk[place] = sum_1_$(r)_$(c);
  }
#end
#end
}
