// Linear layer for one or two rows (single-sequence decode), for CPU drivers with subgroups of LANES (8 or 16): the formula, epilogues and order of
// the sum of nt_cpu.wgsl, so its bits.
// In nt_cpu.wgsl an iteration of 8 k leaves idle lanes when loading x, and reads each row of W in pieces of 16 bytes. Here one load of x serves 4 /
// MT times 8 k.
// A workgroup is one subgroup and owns all MT rows x NT*LANES columns; lane l has columns n0 + NT*l + j.
struct Params { n: u32, k: u32, rank: u32, w_fold: u32, w_texels: u32, w_row: u32, first_row: u32, y_stride: u32, y_column: u32, alpha: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#include "weight.wgsl"
#if LORA
@group(0) @binding(3) var<storage, read> xa: array<vec4f>;
@group(0) @binding(4) var<storage, read> lora_b: array<vec4f>;
#endif
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#if RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<f32>;
#endif

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let n0 = group.x * $(NT*LANES)u;
  // Of what an iteration reads of a row, the lane loads vec4 number `part`; each row has 8 / MT of them.
  let row = lane % 8u / $(8/MT)u;
  let part = lane % $(8/MT)u;
#for j in 0..NT
  let col$(j) = min(n0 + $(NT)u * lane + $(j)u, p.n - 1u);
  let at$(j) = w_origin(p.w_row + col$(j));
#end
#for r in 0..MT
#for j in 0..NT
  var acc_$(r)_$(j) = 0.0;
#end
#end
#include "nt_few_loop.wgsl"
#if LORA
  for (var c = 0u; c < p.rank / 8u; c++) {
    let xv = xa[row * (p.rank / 4u) + part % 2u + 2u * c];
    // If rows have different adapters, xa of these rows may be all 0 for this part of the rank; it is then skipped.
    if (!subgroupAny(any(xv != vec4f()))) { continue; }
#for j in 0..NT
    let b_at$(j) = (p.first_row + col$(j)) * (p.rank / 4u) + 2u * c;
    let w$(j)_0 = W8(lora_b[b_at$(j)], lora_b[b_at$(j) + 1u]);
#end
#let CHUNKS = 1
#include "nt_few_cpu_step.wgsl"
  }
#endif
#for j in 0..NT
  if (n0 + $(NT)u * lane + $(j)u < p.n) {
#for r in 0..MT
    {
      let at = $(r)u * p.y_stride + p.y_column + col$(j);
#if BIAS
      let sum = acc_$(r)_$(j) + bias[p.first_row + col$(j)];
#else
      let sum = acc_$(r)_$(j);
#endif
#if RESIDUAL
      let out = fma(sum, p.alpha, residual[at]);
#else
      let out = sum * p.alpha;
#endif
      y[at] = out;
    }
#end
  }
#end
}
