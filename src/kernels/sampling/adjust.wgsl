// Applies a request's mask, biases and penalties to its logits (rows, vocabulary) before the draw, in place, as vLLM does.
//   mask: row r has bits masks[mask_at[r] ..], bit b of word w for token 32 w + b; a token whose bit is 0 gets `dropped`. mask_at = NONE: no mask.
//   z += bias;  repetition: z > 0 ? z / r : z * r for every token of prompt or output;  then z -= frequency * count + presence * (count > 0).
// Each row lists the tokens concerned once, entries start[r] .. start[r+1] of (token, count, bits of the bias, -). count: how often the token occurs
// in the output so far; 0: only in the prompt; NONE: in neither. A row without entries and mask keeps its bits.
// settings[2r] = (temperature, top_p, min_p, repetition), settings[2r+1] = (frequency, presence, top_k, -): see draw.wgsl. `parts` workgroups per row
// share its mask and its list.
struct Params { rows: u32, vocabulary: u32, parts: u32 }
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> settings: array<vec4f>;
@group(0) @binding(2) var<storage, read> start: array<u32>;
@group(0) @binding(3) var<storage, read> entries: array<vec4u>;
@group(0) @binding(4) var<storage, read> mask_at: array<u32>;
@group(0) @binding(5) var<storage, read> masks: array<u32>;
const NONE = 0xffffffffu;
// Far below every logit, and still finite when divided by a small temperature; tops.wgsl and draw.wgsl rely on it.
const dropped = -1.0e30;

fn allowed(mask: u32, token: u32) -> bool {
  if (mask == NONE) { return true; }
  return ((masks[mask + token / 32u] >> (token % 32u)) & 1u) == 1u;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows) { return; }
  let first = row * p.vocabulary;
  let mask = mask_at[row];
  if (mask != NONE) {
    for (var v = group.y * 64u + lane; v < p.vocabulary; v += 64u * p.parts) {
      if (!allowed(mask, v)) { logits[first + v] = dropped; }
    }
  }
  let repetition = settings[2u * row].w;
  let other = settings[2u * row + 1u];
  for (var i = start[row] + group.y * 64u + lane; i < start[row + 1u]; i += 64u * p.parts) {
    let entry = entries[i];
    // Masked: another lane or workgroup sets it to `dropped`.
    if (!allowed(mask, entry.x)) { continue; }
    let at = first + entry.x;
    var z = logits[at] + bitcast<f32>(entry.z);
    if (entry.y != NONE) {
      z = select(z * repetition, z / repetition, z > 0.0);
      let count = f32(entry.y);
      z -= other.x * count;
      z -= select(0.0, other.y, count > 0.0);
    }
    logits[at] = z;
  }
}
