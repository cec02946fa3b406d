// SwiGLU's gate (arXiv 2002.05202): y = silu(g) * u, silu(g) = g / (1 + exp(-g)). GELU: GEGLU's gate, with gelu.wgsl. SIGMOID: y = u / (1 + exp(-g)).
// Elementwise over `count` elements: values, or VEC4: four of them.
struct Params { count: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> g: array<E>;
@group(0) @binding(1) var<storage, read> u: array<E>;
@group(0) @binding(2) var<storage, read_write> y: array<E>;
#include "flat.wgsl"
#include "gelu.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  let v = g[i];
#if SIGMOID
  y[i] = u[i] / (1.0 + exp(-v));
#else
  y[i] = v / (1.0 + exp(-steep(v))) * u[i];
#endif
}
