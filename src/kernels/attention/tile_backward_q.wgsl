// Backward of attention to q as in backward_q.wgsl, for GPUs: tiles, threads and segments as in tile_forward.wgsl, KT keys at a time.
struct Params { rows: u32, elements: u32, products: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read> d_out: array<vec4f>;
@group(0) @binding(5) var<storage, read> soft: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> dq: array<vec4f>;
#include "common.wgsl"
#include "load_kv.wgsl"
#include "load_q.wgsl"
#include "tile_segments.wgsl"
var<workgroup> room: array<vec4f, $(ROOM)>;

fn left(at: vec4u, row0: u32, head0: u32, x: u32, e: u32, second: u32) -> vec4f {
  let row = min(row0 + x / $(HG)u, p.rows - 1u);
  let head = head0 + x % $(HG)u;
  if (second == 1u) { return load_d_out(row, head, e); }
  return load_q(row, head, e);
}
fn right(at: vec4u, j: u32, head: u32, e: u32, second: u32) -> vec4f {
  if (second == 1u) { return load_v(key_row(at, j), head, e); }
  return load_k(key_row(at, j), head, e);
}
fn added_0(at: vec4u, j: u32, head: u32, e: u32) -> vec4f { return load_k(key_row(at, j), head, e); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
  let tiles = (p.rows + $(RB-1)u) / $(RB)u;
  let tile = group.x + group.z * 65535u;
  if (tile >= tiles) { return; }
  let row0 = (tiles - 1u - tile) * $(RB)u;
  let head0 = group.y * $(HG)u;
  let head = head0 / GROUP;
  let rows4 = id / $(KX)u;
  let kx = id % $(KX)u;
  var seen = vec4u();
  var lse = vec4f();
  var delta = vec4f();
#for r in 0..4
  let in_tile_$(r) = (4u * rows4 + $(r)u) / $(HG)u;
  let row_$(r) = row0 + in_tile_$(r);
  let place_$(r) = row_$(r) * HEADS + head0 + (4u * rows4 + $(r)u) % $(HG)u;
  if (in_tile_$(r) < $(RB)u && takes(row_$(r))) {
    seen[$(r)] = info[row_$(r)].w + 1u;
    lse[$(r)] = soft[place_$(r)].x;
    delta[$(r)] = soft[place_$(r)].y;
  }
#for c in 0..VC
  var sum_0_$(r)_$(c) = vec4f();
#end
#end
  for (var rest = segments(row0, id); any(rest != vec2u()); rest = behind(rest)) {
    let begin = first_of(rest);
    if (!takes(row0 + begin)) { continue; }
    let end = first_of(behind(rest));
    let at = info[row0 + begin];
    let keys = info[row0 + end - 1u].w + 1u;
    var mine = vec4u();
#for r in 0..4
    mine[$(r)] = select(0u, seen[$(r)], in_tile_$(r) >= begin && in_tile_$(r) < end);
#end
    for (var j0 = 0u; j0 < keys; j0 += $(KT)u) {
#include "tile_scores.wgsl"
#for i in 0..KT/KX
      {
        let w = exp(first_$(i) * p.scale - lse);
        room[(kx + $(KX*i)u) * $(RT/4+1)u + rows4] = select(vec4f(), w * (score_$(i) - delta) * p.scale, vec4u(j0 + kx + $(KX*i)u) < mine);
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
