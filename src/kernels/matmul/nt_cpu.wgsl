// Linear layer, for CPU drivers (lavapipe) with subgroups of LANES (8 or 16): y[m,n] = alpha * sum_k x[m,k] W[n,k]
//   LORA: + sum_r xa[m,r] B[n,r] (before alpha; xa holds the scaled product with A)   BIAS: + bias[n] (before alpha)   RESIDUAL: + residual[m,n]
// x (rows, K) float32, W (N, K), y (rows, N). K and rank are multiples of 8.
// X_TEX: x is staged in a texture (stage.ts), whose first row is row0 of x. Rows row0 .. rows of x, xa, y and residual are computed.
// rows_first 1: neighbouring workgroups share columns of y, else rows. It is a parameter, as a constant would double the variants of every tile to
// compile.
// A workgroup is one subgroup and owns MT rows x NT*LANES columns. Lane l has columns n0 + NT*l + j, so a load of W touches all panels at once, and a
// store writes several columns (VEC2: 2, VEC4: 4, which divide n, y_column and y_stride). Each lane loads a different part of x, and
// subgroupBroadcast shares it, from a register or (HELD, held_cpu.wgsl) from the stack: if 8 lanes loaded the same value, that would cost 8 loads on
// this driver.
// Order of the sum: eight k at a time, summed separately and then added to the total, then r likewise; the same for every tile shape, so for every
// batch. That takes as many operations as one running sum, since this driver multiplies and adds separately, and has 0.4 times the rounding error.
// A slice of W: rows w_row .. w_row + n of its storage are rows from first_row on of the whole W (so of B and bias), and columns from y_column on of
// y, whose rows are y_stride apart.
struct Params { row0: u32, rows: u32, rows_first: u32, n: u32, k: u32, rank: u32, w_fold: u32, w_texels: u32, w_row: u32, first_row: u32, y_stride: u32, y_column: u32, alpha: f32 }
#include "out.wgsl"
#if X_TEX
@group(0) @binding(0) var x: texture_storage_2d<rgba32float, read>;
#else
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
#endif
@group(0) @binding(1) var<storage, read_write> y: array<Out>;
#include "weight.wgsl"
#if LORA
@group(0) @binding(3) var<storage, read> xa: array<vec4f>;
@group(0) @binding(4) var<storage, read> bank: array<vec4f>;
#endif
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#if RESIDUAL
@group(0) @binding(6) var<storage, read> residual: array<Out>;
#endif

#include "layout_cpu.wgsl"

#include "nt_cpu_rows.wgsl"

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let tile = select(group.xy, group.yx, p.rows_first == 1u);
  let m0 = p.row0 + tile.y * $(MT)u;
  let n0 = tile.x * $(NT*LANES)u;
#if LORA
  // With LoRA, it took 1.03 times as long with well_laid (512 rows, bench/LOG.md).
  let end = min(m0 + $(MT)u, p.rows);
#else
  let end = well_laid(min(m0 + $(MT)u, p.rows), lane);
#endif
#for j in 0..NT
  let col$(j) = min(n0 + $(NT)u * lane + $(j)u, p.n - 1u);
  let at$(j) = w_origin(p.w_row + col$(j));
#end
#for i in 0..(2*MT+LANES-1)/LANES
  let row$(i) = min(m0 + $(i*LANES/2)u + lane / 2u, p.rows - 1u);
  let x_row$(i) = x_row(row$(i));
#end
#for r in 0..MT
#for j in 0..NT
  var acc_$(r)_$(j) = 0.0;
#end
#end
#include "nt_cpu_loop.wgsl"
#if LORA
  for (var c = 0u; c < p.rank / 8u; c++) {
#for i in 0..(2*MT+LANES-1)/LANES
    let x$(i) = xa[row$(i) * (p.rank / 4u) + lane % 2u + 2u * c];
#end
    // If rows have different adapters, xa of these rows may be all 0 for this part of the rank; it is then skipped.
    var here = false;
#for i in 0..(2*MT+LANES-1)/LANES
    here |= any(x$(i) != vec4f());
#end
    if (!subgroupAny(here)) { continue; }
#for j in 0..NT
    let b_at$(j) = (p.first_row + col$(j)) * (p.rank / 4u) + 2u * c;
#end
#include "lora_b.wgsl"
#for j in 0..NT
    let w$(j) = W8(b$(j)_0, b$(j)_1);
#end
// Not HELD: a rank of 8 is one iteration, so there is no next one whose x could be put on the stack.
#if HELD
#let HELD = 0
#let GUARDED = 0
#let APART = 1
#endif
#include "nt_cpu_step.wgsl"
  }
#endif
  // Vectors of columns, V each
#let V = 1+VEC2+3*VEC4
#for v in 0..NT/V
#if BIAS
#for i in 0..V
  let bias$(V*v+i) = bias[p.first_row + col$(V*v+i)];
#end
#if VEC4
  let bias_of$(v) = vec4f(bias$(4*v), bias$(4*v+1), bias$(4*v+2), bias$(4*v+3));
#else
#if VEC2
  let bias_of$(v) = vec2f(bias$(2*v), bias$(2*v+1));
#else
  let bias_of$(v) = bias$(v);
#endif
#endif
#endif
#end
  // Two rows per iteration: unrolled for all rows, loads and stores would be most of what the driver compiles (see attention/across.wgsl). One row
  // per iteration is slower.
  for (var r0 = m0; r0 < end; r0 += 2u) {
#for q in 0..2
#for j in 0..NT
    var out_$(q)_$(j) = acc_$(q)_$(j);
#for i in 1..MT/2
    out_$(q)_$(j) = select(out_$(q)_$(j), acc_$(2*i+q)_$(j), r0 == m0 + $(2*i)u);
#end
#end
#for v in 0..NT/V
    if (r0 + $(q)u < p.rows && n0 + $(NT)u * lane + $(V*v)u < p.n) {
      let at = ((r0 + $(q)u) * p.y_stride + p.y_column + col$(V*v)) / $(V)u;
#if VEC4
      var sum = vec4f(out_$(q)_$(V*v), out_$(q)_$(V*v+1), out_$(q)_$(V*v+2), out_$(q)_$(V*v+3));
#else
#if VEC2
      var sum = vec2f(out_$(q)_$(V*v), out_$(q)_$(V*v+1));
#else
      var sum = out_$(q)_$(v);
#endif
#endif
#if BIAS
      sum += bias_of$(v);
#endif
#if RESIDUAL
      let out = fma(sum, Out(p.alpha), residual[at]);
#else
      let out = sum * p.alpha;
#endif
      y[at] = out;
    }
#end
#end
  }
}
