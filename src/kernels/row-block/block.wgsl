// Shared by the kernels of this folder: how texels of their weights are loaded, and where a lane keeps the normalised rows that it reads.
#include "lanes.wgsl"
#include "bf16.wgsl"
#include "layout_cpu.wgsl"
fn w_at(n: u32) -> vec2u { return vec2u(n % 8u, n / 8u); }
var<private> normed: array<vec4f, $(2*MT/LANES*H/8)>;
