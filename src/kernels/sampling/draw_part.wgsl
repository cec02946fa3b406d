// The draw of draw.wgsl on GPUs, where there should be many workgroups: for one slice of the vocabulary, the tokens from SLICE s on of slice s, it
// finds the token of the largest z + noise among those whose code is at least least[row] (found by draw.wgsl): best[row * slices + s] = (bits of that
// value, token). z, noise, code, settings and seeds are as there. A maximum does not depend on the order, so the token is the one that draw.wgsl
// would draw. draw_join.wgsl takes the best slice.
struct Params { rows: u32, vocabulary: u32, slices: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> settings: array<vec4f>;
@group(0) @binding(2) var<storage, read> seeds: array<vec2u>;
@group(0) @binding(3) var<storage, read> least: array<u32>;
@group(0) @binding(4) var<storage, read_write> best: array<vec2u>;
#include "lanes.wgsl"
#include "best.wgsl"
#include "hash.wgsl"
#include "code.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows || settings[2u * row + 1u].w != 1.0) { return; }
  let temperature = settings[2u * row].x;
  let greedy = temperature <= 0.0;
  let inv = select(1.0 / temperature, 1.0, greedy);
  let floor_code = least[row];
  let seed = seeds[row];
  let at = row * p.vocabulary;
  let first = group.y * SLICE + lane;
  var value = -3.4e38;
  var token = 0u;
  // Four loads wait for memory at the same time.
  for (var turn = first; turn < group.y * SLICE + SLICE; turn += $(4*LANES)u) {
    var four: vec4f;
#for j in 0..4
    four[$(j)] = logits[at + min(turn + $(j*LANES)u, p.vocabulary - 1u)] * inv;
#end
    for (var j = 0u; j < 4u; j++) {
      let v = turn + j * LANES;
      let z = four[j];
      let h = hash3(seed.x, seed.y, v);
      let kept = v < p.vocabulary && code(z) >= floor_code;
      if (kept && z + select(gumbel_bound(h), 0.0, greedy) > value) {
        var noisy = z;
        if (!greedy) { noisy += gumbel(h); }
        if (noisy > value) { value = noisy; token = v; }
      }
    }
  }
  let most = lanes_max(lane, value);
  let of_most = smallest_token(lane, token, value == most);
  if (lane == 0u) { best[row * p.slices + group.y] = vec2u(bitcast<u32>(most), of_most); }
}
