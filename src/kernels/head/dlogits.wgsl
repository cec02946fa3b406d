// Gradient of the loss with respect to one slice of logits, in place: from z = logits * inv_temperature, p = exp(z - lse[t]),
//   dlogits[t,v] = coefficient[t] * slope * ((v == target[t]) - p),
// coefficient = dLoss/dlogprob of the token, slope = dz/dlogits: inv_temperature times the factor of the head's product, if it has one.
// ENTROPY: the loss has entropy_weight times the token's entropy H subtracted; dH/dz[v] = -p (log p + H).
// logits (rows, stride), columns 0 .. n: tokens first .. first + n of the vocabulary; coefficient, targets, lse start at row first_row.
// A workgroup has elements of one row, so that no element has to find its row, which a CPU driver does lane by lane. An element is one token, or with
// VEC4 four; an invocation does PER of them, 64 apart. RAGGED: n is not a multiple of 4 but the stride is, so there is room for the last vector,
// which gets zeros from n on.
#if ENTROPY
struct Params { rows: u32, n: u32, stride: u32, first: u32, first_row: u32, inv_temperature: f32, slope: f32, entropy_weight: f32 }
#else
struct Params { rows: u32, n: u32, stride: u32, first: u32, first_row: u32, inv_temperature: f32, slope: f32 }
#endif
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read_write> logits: array<E>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> coefficient: array<f32>;
#if ENTROPY
@group(0) @binding(4) var<storage, read> entropy: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.y + group.z * 65535u;
  if (row >= p.rows) { return; }
  let t = p.first_row + row;
  let wanted = targets[t] - p.first;
  let lse_t = lse[t];
  let factor = coefficient[t] * p.slope;
#if ENTROPY
  let entropy_t = entropy[t];
  let entropy_factor = p.entropy_weight * p.slope;
#endif
  let elements = (p.n + $(3*RAGGED)u) / $(1+3*VEC4)u;
  let start = group.x * (64u * PER) + lane;
  for (var c = start; c < min(start + 64u * PER, elements); c += 64u) {
    let e = row * (p.stride / $(1+3*VEC4)u) + c;
    let log_probability = logits[e] * p.inv_temperature - lse_t;
    let probability = exp(log_probability);
#if VEC4
    let hit = select(vec4f(), vec4f(1.0), vec4u(4u * c, 4u * c + 1u, 4u * c + 2u, 4u * c + 3u) == vec4u(wanted));
#else
    let hit = select(0.0, 1.0, c == wanted);
#endif
#if ENTROPY
    let gradient = factor * (hit - probability) + entropy_factor * (probability * (log_probability + entropy_t));
#else
    let gradient = factor * (hit - probability);
#endif
#if RAGGED
    logits[e] = select(gradient, vec4f(), vec4u(4u * c, 4u * c + 1u, 4u * c + 2u, 4u * c + 3u) >= vec4u(p.n));
#else
    logits[e] = gradient;
#endif
  }
}
