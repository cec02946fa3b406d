// Gradients of y = silu(g) * u: du = dy silu(g), dg = dy u s (1 + g (1 - s)) with s = 1 / (1 + exp(-g)).
// GELU: the gate of gelu.wgsl, dg = dy u s (1 + g steepness(g) (1 - s)) with s = 1 / (1 + exp(-steep(g))). SIGMOID: y = u s, du = dy s, dg = dy u s
// (1 - s).
// Elementwise over `count` elements: values, or VEC4: four of them. AGAIN: y, as silu_gate.wgsl computes it, overwrites dy.
struct Params { count: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
#if AGAIN
@group(0) @binding(0) var<storage, read_write> dy: array<E>;
#else
@group(0) @binding(0) var<storage, read> dy: array<E>;
#endif
@group(0) @binding(1) var<storage, read> g: array<E>;
@group(0) @binding(2) var<storage, read> u: array<E>;
@group(0) @binding(3) var<storage, read_write> dg: array<E>;
@group(0) @binding(4) var<storage, read_write> du: array<E>;
#include "flat.wgsl"
#include "gelu.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  let v = g[i];
  let d = dy[i];
  let w = u[i];
  let e = 1.0 + exp(-steep(v));
  let s = 1.0 / e;
#if SIGMOID
  du[i] = d * s;
  dg[i] = d * w * s * (1.0 - s);
#else
  du[i] = d * v * s;
#if GELU
  dg[i] = d * w * s * fma(v * steepness(v), 1.0 - s, E(1.0));
#else
  dg[i] = d * w * s * fma(v, 1.0 - s, E(1.0));
#endif
#endif
#if AGAIN
#if SIGMOID
  dy[i] = w / e;
#else
  dy[i] = v / e * w;
#endif
#endif
}
