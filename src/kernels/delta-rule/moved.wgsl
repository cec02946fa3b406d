// What tokens write to the states: moved[t] = beta[t] u[t]; u, moved (rows, heads, VALUE), four values at a time, beta (rows, heads).
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> beta: array<f32>;
@group(0) @binding(1) var<storage, read> u: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> moved: array<vec4f>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
  moved[e] = beta[e / $(VALUE/4)u] * u[e];
}
