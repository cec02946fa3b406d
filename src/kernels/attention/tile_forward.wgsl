// Causal attention for GPUs and many neighbouring rows, with the bits of forward.wgsl. A workgroup takes RB rows of HG query heads that share a kv
// head (RB HG <= RT rows of a product) and goes through their keys in tiles of KT, the LANES of forward.wgsl; both operands of each product pass
// through workgroup memory. A thread owns four rows: in the scores the keys kx + KX i, in o the vectors kx + KX c. A key is read once per tile, not
// once per row as in forward.wgsl.
// Rows that see different keys (tile_segments.wgsl) are computed one segment after another. The last tiles come first, as they mostly see the most
// keys. Shapes are as in forward.wgsl; D is a multiple of 4.
// Order of sums: scores over a head's elements; a tile's weights as lanes_sum adds them; values over the keys; splits of SPLIT keys merged as in
// join.wgsl, with the running o of the splits so far in the output buffer until the last one is merged.
struct Params { rows: u32, pieces: u32, depth: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<KV>;
@group(0) @binding(2) var<storage, read> v: array<KV>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read_write> o: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;
#if PAGES
@group(0) @binding(6) var<storage, read> pages: array<u32>;
#endif
#include "common.wgsl"
#include "load_kv.wgsl"
#include "join.wgsl"
#include "tile_segments.wgsl"
var<workgroup> room: array<vec4f, $(ROOM)>;
var<workgroup> most: array<vec4f, $(THREADS)>;
var<workgroup> parts: array<vec4f, $(THREADS)>;

fn left_place(row0: u32, head0: u32, x: u32) -> u32 {
  return (min(row0 + x / $(HG)u, p.rows - 1u) * HEADS + head0 + x % $(HG)u) * DE;
}
fn left(place: u32, second: u32) -> vec4f { return q[place]; }
fn right_place(at: vec4u, j: u32, head: u32) -> u32 { return (key_row(at, j) * KV_HEADS + head) * DE; }
fn right(place: u32, second: u32) -> vec4f { return load_k(0u, 0u, place); }
fn added_0(at: vec4u, j: u32, head: u32, e: u32) -> vec4f { return load_v(key_row(at, j), head, e); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) id: u32) {
#include "tile_rows.wgsl"
#for r in 0..4
#for c in 0..VC
  var sum_0_$(r)_$(c) = vec4f();
#end
#end
  var all_m = vec4f(-3.0e38);
  var all_l = vec4f();
  for (var rest = segments(row0, id); any(rest != vec2u()); rest = behind(rest)) {
    let begin = first_of(rest);
#include "tile_segment.wgsl"
    let from_split = from_key / $(SPLIT)u * $(SPLIT)u;
    for (var first = from_split; first < keys; first += $(SPLIT)u) {
      var m = vec4f(-3.0e38);
      var l = vec4f();
      for (var j0 = max(first, from_key / $(KT)u * $(KT)u); j0 < min(keys, first + $(SPLIT)u); j0 += $(KT)u) {
#include "tile_scores.wgsl"
        // For rows that do not see a key, its weight is 0; for a tile of such keys, the factor is 1.
        var high = vec4f(-3.0e38);
#for i in 0..KT/KX
#if WINDOW
        let sees_$(i) = (vec4u(j0 + kx + $(KX*i)u) < mine) & (vec4u(j0 + kx + $(KX*i)u) >= low);
#else
        let sees_$(i) = vec4u(j0 + kx + $(KX*i)u) < mine;
#endif
        score_$(i) = select(vec4f(-3.0e38), score_$(i) * p.scale, sees_$(i));
        high = max(high, score_$(i));
#end
        most[rows4 * $(KX)u + kx] = high;
        workgroupBarrier();
#for x in 0..KX
        high = max(high, most[rows4 * $(KX)u + $(x)u]);
#end
        high = max(m, high);
        let shrink = exp(m - high);
        m = high;
#for i in 0..KT/KX
        let w_$(i) = select(vec4f(), exp(score_$(i) - high), sees_$(i));
        room[(kx + $(KX*i)u) * $(RT/4+1)u + rows4] = w_$(i);
#end
        // The tree of lanes_sum: it adds keys KT / 2 apart, then KT / 4, .. 1.
#if KEYS_8
        parts[rows4 * $(KX)u + kx] = ((w_0 + w_4) + (w_2 + w_6)) + ((w_1 + w_5) + (w_3 + w_7));
#else
#if KEYS_4
        parts[rows4 * $(KX)u + kx] = (w_0 + w_2) + (w_1 + w_3);
#else
#if KEYS_2
        parts[rows4 * $(KX)u + kx] = w_0 + w_1;
#else
        parts[rows4 * $(KX)u + kx] = w_0;
#endif
#endif
#endif
#for r in 0..4
#for c in 0..VC
        sum_0_$(r)_$(c) *= shrink[$(r)];
#end
#end
#include "tile_add.wgsl"
#for x in 0..KX
        var part_$(x) = parts[rows4 * $(KX)u + $(x)u];
#end
#if KX_16
#for x in 0..KX/2
        part_$(x) += part_$(x+KX/2);
#end
#endif
        l = fma(l, shrink, ((part_0 + part_4) + (part_2 + part_6)) + ((part_1 + part_5) + (part_3 + part_7)));
      }
#for r in 0..4
      if (first < mine[$(r)]) {
        let j = joint(all_m[$(r)], m[$(r)]);
        all_m[$(r)] = j.m;
        all_l[$(r)] = join_l(all_l[$(r)], l[$(r)], j);
        let last = first + $(SPLIT)u >= mine[$(r)];
#for c in 0..VC
        if (kx + $(KX*c)u < DE) {
          let place = place_$(r) * DE + kx + $(KX*c)u;
          var before = vec4f();
          if (first > from_split) { before = o[place]; }
          let value = join_o(before, sum_0_$(r)_$(c), j);
          o[place] = select(value, value / all_l[$(r)], last);
        }
#end
        if (kx == 0u && last) { lse[place_$(r)] = all_m[$(r)] + log(all_l[$(r)]); }
      }
      // For rows of other segments, o is 0 here, or NaN if this segment's values are NaN.
#for c in 0..VC
      sum_0_$(r)_$(c) = vec4f();
#end
#end
    }
  }
}
