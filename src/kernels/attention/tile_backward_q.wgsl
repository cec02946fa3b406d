// Backward pass of attention to q as in backward_q.wgsl, for GPUs. Tiles, threads and segments are as in tile_forward.wgsl, with KT keys at a time.
struct Params { rows: u32, pieces: u32, depth: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read> d_out: array<vec4f>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dq: array<vec4f>;
#include "common.wgsl"
#include "load_kv.wgsl"
#include "tile_segments.wgsl"
var<workgroup> room: array<vec4f, $(ROOM)>;

fn left_place(row0: u32, head0: u32, x: u32) -> u32 {
  return (min(row0 + x / $(HG)u, p.rows - 1u) * HEADS + head0 + x % $(HG)u) * DE;
}
fn left(place: u32, second: u32) -> vec4f {
  if (second == 1u) { return d_out[place]; }
  return q[place];
}
fn right_place(at: vec4u, j: u32, head: u32) -> u32 { return (key_row(at, j) * KV_HEADS + head) * DE; }
fn right(place: u32, second: u32) -> vec4f {
  if (second == 1u) { return v[place]; }
  return k[place];
}
fn added_0(at: vec4u, j: u32, head: u32, e: u32) -> vec4f { return load_k(key_row(at, j), head, e); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
#include "tile_rows.wgsl"
  var lse = vec4f();
  var delta = vec4f();
#for r in 0..4
  if (seen[$(r)] > 0u) {
    lse[$(r)] = soft[place_$(r)].x;
    delta[$(r)] = soft[place_$(r)].y;
  }
#for c in 0..VC
  var sum_0_$(r)_$(c) = vec4f();
#end
#end
  for (var rest = segments(row0, id); any(rest != vec2u()); rest = behind(rest)) {
    let begin = first_of(rest);
#include "tile_segment.wgsl"
    for (var j0 = from_key / $(KT)u * $(KT)u; j0 < keys; j0 += $(KT)u) {
#include "tile_scores.wgsl"
#for i in 0..KT/KX
      {
        let w = exp(first_$(i) * p.scale - lse);
#if WINDOW
        let sees = (vec4u(j0 + kx + $(KX*i)u) < mine) & (vec4u(j0 + kx + $(KX*i)u) >= low);
#else
        let sees = vec4u(j0 + kx + $(KX*i)u) < mine;
#endif
        room[(kx + $(KX*i)u) * $(RT/4+1)u + rows4] = select(vec4f(), w * (score_$(i) - delta) * p.scale, sees);
      }
#end
#include "tile_add.wgsl"
    }
  }
#for r in 0..4
#for c in 0..VC
  if (seen[$(r)] > 0u && kx + $(KX*c)u < DE) { dq[place_$(r) * DE + kx + $(KX*c)u] = sum_0_$(r)_$(c); }
#end
#end
}
