// Rotary position embedding (arXiv 2104.09864, halves as in Hugging Face), in place: for each head of width 2h and i < h
//   x[i] <- x[i] cos - s x[i+h] sin;  x[i+h] <- x[i+h] cos + s x[i] sin, s = 1 forward and -1 backward (the inverse rotation).
// x (rows, heads * 2h); table[position * h + i] = (cos, sin), made in float64 on the host, since WGSL's sin and cos are coarse;
// the position of a row is info[row].w (see attention).
struct Params { rows: u32, heads: u32, half_dim: u32, sign: f32 }
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> info: array<vec4u>;
@group(0) @binding(2) var<storage, read> table: array<vec2f>;
#include "flat.wgsl"

fn one(e: u32) {
  let per_row = p.heads * p.half_dim;
  let row = e / per_row;
  if (row >= p.rows) { return; }
  let head = (e % per_row) / p.half_dim;
  let i = e % p.half_dim;
  let at = (row * p.heads + head) * 2u * p.half_dim + i;
  let turn = table[info[row].w * p.half_dim + i];
  let a = x[at];
  let b = x[at + p.half_dim];
  x[at] = fma(a, turn.x, -(p.sign * b * turn.y));
  x[at + p.half_dim] = fma(b, turn.x, p.sign * a * turn.y);
}
