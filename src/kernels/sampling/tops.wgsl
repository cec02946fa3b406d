// The most likely tokens of each row, and the rank of the row's actual token. z = logits * inv_temperatures[r], logits (rows, vocabulary), stats from
// softmax_slice.wgsl; a token's log-probability is (z - m) - log s, as in finish.wgsl.
//   wanted[r]: 0: nothing; 1 + k: records[r] = (rank, k ids, bits of k log-probabilities), ids from word 1 on, log-probabilities from word 1 + MOST
//     on.
//   rank = 1 + how many z are larger than that of targets[r]. The most likely token comes first, and of equal ones the smaller id; NONE if fewer than
//     k were not dropped.
// A row whose inverse temperature is 0 is skipped. One workgroup per row: one pass finds the best token of each of SEGMENTS strided parts of the
// vocabulary, and each time one is taken, only its part is searched again.
struct Params { rows: u32, vocabulary: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> inv_temperatures: array<f32>;
@group(0) @binding(2) var<storage, read> stats: array<vec4f>;
@group(0) @binding(3) var<storage, read> targets: array<u32>;
@group(0) @binding(4) var<storage, read> wanted: array<u32>;
@group(0) @binding(5) var<storage, read_write> records: array<u32>;
#include "lanes.wgsl"
#include "best.wgsl"
const NONE = 0xffffffffu;
const SEGMENTS = 256u;
// Dropped tokens are below this (adjust.wgsl, draw.wgsl).
const lowest = -1.0e29;
var<workgroup> segment_z: array<f32, SEGMENTS>;
var<workgroup> segment_token: array<u32, SEGMENTS>;

fn better(z: f32, token: u32, than_z: f32, than_token: u32) -> bool { return z > than_z || (z == than_z && token < than_token); }

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows) { return; }
  let inv = inv_temperatures[row];
  if (inv == 0.0 || wanted[row] == 0u) { return; }
  let at = row * p.vocabulary;
  let record = row * (1u + 2u * MOST);
  let target_z = logits[at + targets[row]] * inv;
  var larger = 0.0;
  for (var s = lane; s < SEGMENTS; s += LANES) {
    var z = lowest;
    var token = NONE;
    for (var v = s; v < p.vocabulary; v += SEGMENTS) {
      let other = logits[at + v] * inv;
      larger += select(0.0, 1.0, other > target_z);
      if (other > z) { z = other; token = v; }
    }
    segment_z[s] = z;
    segment_token[s] = token;
  }
  let rank = 1u + u32(lanes_sum(lane, larger));
  if (lane == 0u) { records[record] = rank; }
  let log_s = log(stats[row].y);
  for (var i = 1u; i < wanted[row]; i++) {
    var z = lowest;
    var token = NONE;
    for (var s = lane; s < SEGMENTS; s += LANES) {
      if (better(segment_z[s], segment_token[s], z, token)) { z = segment_z[s]; token = segment_token[s]; }
    }
    let best = lanes_max(lane, z);
    let taken = smallest_token(lane, token, z == best && token != NONE);
    if (lane == 0u) {
      let found = best > lowest;
      records[record + i] = select(NONE, taken, found);
      records[record + MOST + i] = bitcast<u32>((best - stats[row].x) - log_s);
    }
    z = lowest;
    token = NONE;
    for (var v = taken % SEGMENTS + lane * SEGMENTS; v < p.vocabulary; v += LANES * SEGMENTS) {
      let other = logits[at + v] * inv;
      if (better(best, taken, other, v) && other > z) { z = other; token = v; }
    }
    let next = lanes_max(lane, z);
    let next_token = smallest_token(lane, token, z == next && token != NONE);
    // A part belongs to one lane from first to last, so no lane waits for another.
    if (lane == taken % LANES) {
      segment_z[taken % SEGMENTS] = next;
      segment_token[taken % SEGMENTS] = select(NONE, next_token, next > lowest);
    }
  }
}
