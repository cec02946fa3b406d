// Rotary position embedding (arXiv 2104.09864, halves as in Hugging Face), in place: for each head of width 2h and i < h
//   x[i] <- x[i] cos - s x[i+h] sin;  x[i+h] <- x[i+h] cos + s x[i] sin
// s = 1 in the forward pass and -1 in the backward pass, which is the inverse rotation (the transposed one if the table contains a factor, as with
// YaRN).
// x (rows, heads * 2h); table[position * h + i] = (cos, sin), computed in float64 on the host, since WGSL's sin and cos are imprecise; the position
// of a row is info[row].w (see attention).
// An element is a pair of a head (turn.wgsl), or with VEC4 four neighbouring pairs (h is then a multiple of 4; see rope_cache.wgsl).
#if PARTIAL
struct Params { rows: u32, heads: u32, half_dim: u32, turned: u32, sign: f32 }
#else
struct Params { rows: u32, heads: u32, half_dim: u32, sign: f32 }
#endif
#if VEC4
alias E = vec4f;
alias T = vec4f;
#else
alias E = f32;
alias T = vec2f;
#endif
@group(0) @binding(0) var<storage, read_write> x: array<E>;
@group(0) @binding(1) var<storage, read> info: array<vec4u>;
@group(0) @binding(2) var<storage, read> table: array<T>;
#include "angles.wgsl"
#include "flat.wgsl"
fn position_of(row: u32) -> u32 { return info[row].w; }

fn one(e: u32) {
  let h = p.half_dim / $(1+3*VEC4)u;
  let per_row = p.heads * h;
#include "turn.wgsl"
  let at = (row * p.heads + head) * 2u * h + lower;
  let a = x[at];
  let b = x[at + apart];
  x[at] = fma(a, E(cosine), -(p.sign * b * sine));
  x[at + apart] = fma(b, E(cosine), p.sign * a * sine);
}
