// Gradient of the loss to one slice of logits, in place: from z = logits * inv_temperature,
//   dlogits[t,v] = coefficient[t] * inv_temperature * ((v == target[t]) - exp(z - lse[t])), coefficient = dLoss/dlogprob of the token.
// logits (rows, n), tokens first .. first + n of the vocabulary; coefficient, targets, lse start at row first_row.
struct Params { rows: u32, n: u32, first: u32, first_row: u32, inv_temperature: f32 }
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> coefficient: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.rows * p.n) { return; }
  let t = p.first_row + e / p.n;
  let v = p.first + e % p.n;
  let probability = exp(logits[e] * p.inv_temperature - lse[t]);
  logits[e] = coefficient[t] * p.inv_temperature * (select(0.0, 1.0, v == targets[t]) - probability);
}
