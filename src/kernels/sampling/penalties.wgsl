// Penalties, as vLLM applies them, in place on logits (rows, vocabulary). Each row lists its tokens once: entries start[r] .. start[r+1] of
// tokens and counts; counts[i] = how often the token stands in the output so far (0: only in the prompt).
//   repetition: z > 0 ? z / r : z * r for every listed token;  then z -= frequency * count + presence * (count > 0).
// settings[2r] = (temperature, top_p, min_p, repetition), settings[2r+1] = (frequency, presence, top_k, -): see draw.wgsl. One workgroup a row.
struct Params { rows: u32, vocabulary: u32 }
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> settings: array<vec4f>;
@group(0) @binding(2) var<storage, read> start: array<u32>;
@group(0) @binding(3) var<storage, read> tokens: array<u32>;
@group(0) @binding(4) var<storage, read> counts: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows) { return; }
  let repetition = settings[2u * row].w;
  let other = settings[2u * row + 1u];
  for (var i = start[row] + lane; i < start[row + 1u]; i += 64u) {
    let at = row * p.vocabulary + tokens[i];
    var z = logits[at];
    z = select(z * repetition, z / repetition, z > 0.0);
    let count = f32(counts[i]);
    z -= other.x * count;
    z -= select(0.0, other.y, count > 0.0);
    logits[at] = z;
  }
}
